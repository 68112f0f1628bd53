"""Group commit for threads: one append at a time carries what has gathered, the others wait for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lake.events import Event
from lake.log import Log, LogUnavailable

EVENTS_MAX = 500  # in one append
BYTES_MAX = 32 << 20  # of arrays, about; one event alone may have more
PAUSE_S, PAUSE_S_MAX = 0.05, 2.0


class CaptureLost(RuntimeError):
    """Events that were given are not acknowledged: why, and how to go on."""


@dataclass(eq=False, slots=True)
class Waiting:
    """Events on their way into the log."""

    events: Sequence[Event]
    size: int
    done: bool = False


class Appender:
    """Appends events of many threads to one log, in the order of `put`.

    `wait` returns when the log has acknowledged.  A log that is away is asked again for `patience_s`
    seconds, since readers drop what is written twice; then, and after any other error, nothing more is
    taken: what comes later must not be in the log without what came before.  The queue is bounded by its
    callers, each of whom waits.
    """

    def __init__(self, log: Log, *, patience_s: float) -> None:
        self._log, self._patience_s = log, patience_s
        self._queue: deque[Waiting] = deque()
        self._state = threading.Lock()
        self._turn = threading.Lock()
        self._broken: BaseException | None = None

    def put(self, events: Sequence[Event], size: int = 0) -> Waiting:
        """Queue events; `size` bytes of arrays.  Raises CaptureLost after an error."""
        waiting = Waiting(events, size)
        with self._state:
            if self._broken is not None:
                raise self._lost()
            self._queue.append(waiting)
        return waiting

    def wait(self, waiting: Waiting) -> None:
        """Until these events are acknowledged.  Raises CaptureLost."""
        with self._turn:
            while not waiting.done:
                if self._broken is not None:
                    raise self._lost()
                self._lead()

    def append(self, events: Sequence[Event]) -> None:
        """`put` and `wait`."""
        self.wait(self.put(events))

    def _lost(self) -> CaptureLost:
        lost = CaptureLost(
            f"events are not in the log ({type(self._broken).__name__}: {self._broken}); once it answers "
            "again, open the capture anew: it goes on after what the log has"
        )
        lost.__cause__ = self._broken
        return lost

    def _lead(self) -> None:
        """Append what waits, for all who put it there."""
        try:
            batch = self._take()
            self._append([event for waiting in batch for event in waiting.events])
            for waiting in batch:
                waiting.done = True
        except BaseException as error:  # an interrupt too: whether they are in the log is not known
            with self._state:
                self._broken = error
                self._queue.clear()
            if not isinstance(error, Exception):
                raise

    def _take(self) -> list[Waiting]:
        """What goes into one append: one at least, where there is one."""
        batch: list[Waiting] = []
        count = size = 0
        with self._state:
            while self._queue and (
                not batch or (count + len(self._queue[0].events) <= EVENTS_MAX and size <= BYTES_MAX)
            ):
                batch.append(self._queue.popleft())
                count, size = count + len(batch[-1].events), size + batch[-1].size
        return batch

    def _append(self, events: Sequence[Event]) -> None:
        until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            try:
                self._log.append(events)
                return
            except LogUnavailable:
                if time.monotonic() + pause_s > until:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
