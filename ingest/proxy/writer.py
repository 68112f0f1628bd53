"""Events to the log: those that come while a transaction is written share the next one.

Guarantees: `append` returns after the log has acknowledged the events and raises what the log raised;
nothing is dropped; at most `pending_max` appends of together `pending_bytes_max` wait, and then `append`
waits too; the log being out of reach is retried for `retry_s_max` seconds, since readers remove what is
written twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from lake.events import Event, EventError
from lake.log import Log, LogError, LogUnavailable
from lake.metrics import proxy_metrics

RETRY_S_MIN = 0.05
RETRY_S_STEP_MAX = 2.0
EVENT_OVERHEAD_BYTES = 1024  # the fields of an event that are no text and no bytes, and what waits for it


@dataclass(slots=True, eq=False)
class _Waiting:
    events: Sequence[Event]
    size: int
    done: asyncio.Future[None]
    within_s: float
    alone: bool = False  # a transaction with others was refused


class EventWriter:
    """One thread that appends; in the order they came.  For one event loop.

    There is no task between: an event goes to the thread from where it was made, since each turn of a busy
    loop takes longer than the transaction.
    """

    def __init__(
        self,
        log: Log,
        *,
        pending_max: int = 4096,
        pending_bytes_max: int = 256 << 20,
        batch_max: int = 512,
        batch_bytes_max: int = 16 << 20,
        retry_s_max: float = 60.0,
    ) -> None:
        self._log = log
        self._batch_max, self._batch_bytes_max = batch_max, batch_bytes_max
        self._count, self._count_max = 0, pending_max
        self._bytes, self._bytes_max = 0, pending_bytes_max  # of events that wait; one alone may be larger
        self._retry_s_max = retry_s_max
        self._outside: deque[_Waiting] = deque()  # those that there is no room for
        self._pending: deque[_Waiting] = deque()
        self._unhurried: deque[_Waiting] = deque()
        self._writing = False
        self._retrying: asyncio.Task[None] | None = None  # the loop itself holds on to no task
        self._idle: asyncio.Future[None] | None = None  # `stop` waits for it
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-writer")
        self._gauge = proxy_metrics().events_waiting

    async def stop(self) -> None:
        """Append what waits, then end."""
        self._idle = asyncio.get_running_loop().create_future()
        self._next()
        await self._idle
        self._thread.shutdown()

    async def append(self, *events: Event) -> None:
        """Returns when the events are in the log, all or none of them.  Raises EventError, LogError."""
        await self.put(*events)

    def put(self, *events: Event, within_s: float = 0.0) -> asyncio.Future[None]:
        """As append: await what it returns.  It is on its way at once, where there is room.

        within_s: who is in no hurry waits so long for the next transaction, instead of causing one.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not events:
            done.set_result(None)
            return done
        waiting = _Waiting(events, sum(map(_size, events)), done, within_s)
        self._gauge.inc(len(events))
        done.add_done_callback(lambda _: self._gauge.dec(len(events)))
        self._outside.append(waiting)
        self._enter()
        return done

    # ---------------------------------------------------------------------------------- the room
    def _enter(self) -> None:
        """Who waits for room gets what there is, in the order they came."""
        hurried = False
        while self._outside and (self._outside[0].done.done() or self._fits(self._outside[0].size)):
            waiting = self._outside.popleft()
            if waiting.done.done():
                continue  # who waited was cancelled
            self._count += 1
            self._bytes += waiting.size
            if waiting.within_s and not self._idle:
                self._unhurried.append(waiting)
                asyncio.get_running_loop().call_later(waiting.within_s, self._hurry, waiting)
            else:
                self._pending.append(waiting)
                hurried = True
        if hurried:
            self._next()

    def _fits(self, size: int) -> bool:
        return not self._count or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    # ------------------------------------------------------------------------------- the writing
    def _hurry(self, waiting: _Waiting) -> None:
        """No transaction took it along."""
        if waiting in self._unhurried:
            self._unhurried.remove(waiting)
            self._pending.append(waiting)
            self._next()

    def _next(self) -> None:
        """Start a transaction, where none runs and something waits."""
        if self._writing:
            return
        batch = self._batch()
        if batch:
            self._writing = True
            self._write(batch, asyncio.get_running_loop().time() + self._retry_s_max, RETRY_S_MIN)
        elif self._idle and not self._idle.done():
            self._idle.set_result(None)

    def _batch(self) -> list[_Waiting]:
        """What the next transaction takes: all that there is, within its bounds."""
        if not self._pending and not self._idle:
            return []  # what is in no hurry causes none
        batch: list[_Waiting] = []
        size = 0
        for queue in (self._pending, self._unhurried):
            while queue and len(batch) < self._batch_max and size < self._batch_bytes_max:
                if queue[0].alone:
                    return batch or [queue.popleft()]
                batch.append(queue.popleft())
                size += batch[-1].size
        return batch

    def _write(self, batch: list[_Waiting], until: float, pause: float) -> None:
        events = [event for waiting in batch for event in waiting.events]
        written = asyncio.get_running_loop().run_in_executor(self._thread, self._log.append, events)
        written.add_done_callback(lambda future: self._written(future, batch, until, pause))

    def _written(
        self, future: asyncio.Future[Any], batch: list[_Waiting], until: float, pause: float
    ) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if isinstance(error, LogUnavailable):
            if asyncio.get_running_loop().time() + pause <= until:
                self._retrying = asyncio.create_task(self._again(batch, until, pause))
                return
            count = sum(len(waiting.events) for waiting in batch)
            within = f"{self._retry_s_max:g} s"
            sentence = f"the log could not be reached for {within}; {count} events are not in it"
            unreached = LogError(f"{sentence}: {error}")
            unreached.__cause__ = error
            error = unreached
        if isinstance(error, EventError) and len(batch) > 1:
            # nothing was written: the bad event must not take the others along
            for waiting in batch:
                waiting.alone = True
            self._pending.extendleft(reversed(batch))
        else:
            if error is not None and not isinstance(error, LogError | EventError):
                # no reason of the log's own: it still belongs to those who wait
                error = LogError(f"the log failed with {type(error).__name__}: {error}")
            _settle(batch, error)
            self._count -= len(batch)
            self._bytes -= sum(waiting.size for waiting in batch)
        self._writing = False
        self._enter()
        self._next()

    async def _again(self, batch: list[_Waiting], until: float, pause: float) -> None:
        await asyncio.sleep(pause)
        self._write(batch, until, min(pause * 2, RETRY_S_STEP_MAX))


def _size(event: Event) -> int:
    """About the bytes that an event holds in memory."""
    fields = msgspec.structs.astuple(event)
    return EVENT_OVERHEAD_BYTES + sum([len(value) for value in fields if type(value) in (bytes, str)])


def _settle(batch: Sequence[_Waiting], error: BaseException | None) -> None:
    for waiting in batch:
        if waiting.done.done():
            continue  # who waited was cancelled
        if error is None:
            waiting.done.set_result(None)
        else:
            waiting.done.set_exception(error)
