"""Group commit: many tasks append to the log, and one append at a time carries what has gathered."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lake.events import Event
from lake.log import Log, LogUnavailable

EVENTS_MAX = 500  # in one append
PATIENCE_S = 60.0  # a broker that fails over is back in well under this
PAUSE_S_MAX = 2.0


class Publisher:
    """Appends events from an event loop; the log's own waits happen in one thread.

    `publish` returns after the log has acknowledged the events, which lie there in order; what
    several tasks publish meanwhile goes into one append.  The queue is bounded by its callers, each
    of whom waits.  `run` must be running, in a task of its own.
    """

    def __init__(self, log: Log, *, patience_s: float = PATIENCE_S) -> None:
        self._log, self._patience_s = log, patience_s
        self._waiting: list[tuple[Sequence[Event], asyncio.Future[None]]] = []
        self._arrived = asyncio.Event()
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, "publisher")

    async def publish(self, events: Sequence[Event]) -> None:
        """Append events.  Cancelled, they may be appended all the same."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((events, done))
        self._arrived.set()
        await done

    async def run(self) -> None:
        """Append what is published, until cancelled.

        Raises LogUnavailable when the log has not acknowledged for `patience_s` seconds, EventError
        for an event that cannot be.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self._take():
                events = [event for some, _ in batch for event in some]
                await loop.run_in_executor(self._thread, self._append, events)
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)

    def _take(self) -> list[tuple[Sequence[Event], asyncio.Future[None]]]:
        count = size = 0
        for events, _ in self._waiting:
            if count and size + len(events) > EVENTS_MAX:
                break
            count, size = count + 1, size + len(events)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _append(self, events: Sequence[Event]) -> None:
        """Once or, where the log did not answer, again: readers drop repeats by event id."""
        until, pause_s = time.monotonic() + self._patience_s, 0.05
        while True:
            try:
                self._log.append(events)
                return
            except LogUnavailable:
                if time.monotonic() + pause_s > until or self._closing.wait(pause_s):
                    raise
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def close(self) -> None:
        """Append what was published and not yet taken, without patience, and end the thread.

        To be called after `run` has ended.  Raises LogUnavailable where the log does not take it.
        """
        self._closing.set()
        left = [event for some, _ in self._waiting for event in some]
        self._waiting = []
        try:
            if left:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._append, left)
        finally:
            self._thread.shutdown()
