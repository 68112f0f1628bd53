"""Events to the log: those that come at the same time share one transaction.

Guarantees: `append` returns after the log has acknowledged the event and raises what the log raised;
nothing is dropped; at most `pending_max` events of together `pending_bytes_max` wait, and then `append`
waits too; the log being out of reach is retried for `retry_s_max` seconds, since readers remove what is
written twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lake.events import Event, EventError
from lake.log import Log, LogError, LogUnavailable
from lake.metrics import proxy_metrics

RETRY_S_MIN = 0.05
RETRY_S_STEP_MAX = 2.0
EVENT_OVERHEAD_BYTES = 1024  # the fields of an event that are no text and no bytes, and what waits for it


@dataclass(frozen=True, slots=True)
class _Waiting:
    event: Event
    size: int
    done: asyncio.Future[None]


class EventWriter:
    """One task that collects events and one thread that appends them; in the order they came."""

    def __init__(
        self,
        log: Log,
        *,
        pending_max: int = 4096,
        pending_bytes_max: int = 256 << 20,
        batch_max: int = 512,
        batch_bytes_max: int = 16 << 20,
        collect_s: float = 0.002,
        retry_s_max: float = 60.0,
    ) -> None:
        self._log = log
        self._batch_max, self._batch_bytes_max = batch_max, batch_bytes_max
        self._bytes, self._bytes_max = 0, pending_bytes_max  # of events that wait; one alone may be larger
        self._room = asyncio.Condition()
        self._collect_s = collect_s
        self._retry_s_max = retry_s_max
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(pending_max)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-writer")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Append what waits, then end."""
        if self._task:
            await self._queue.join()
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown()

    async def append(self, event: Event) -> None:
        """Returns when the event is in the log.  Raises EventError, LogError."""
        waiting = _Waiting(event, _size(event), asyncio.get_running_loop().create_future())
        with proxy_metrics().events_waiting.track_inprogress():
            async with self._room:
                await self._room.wait_for(lambda: self._fits(waiting.size))
                self._bytes += waiting.size
            try:
                await self._queue.put(waiting)
            except BaseException:
                await self._give([waiting])
                raise
            await waiting.done

    def _fits(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._bytes_max

    async def _give(self, batch: Sequence[_Waiting]) -> None:
        async with self._room:
            self._bytes -= sum(w.size for w in batch)
            self._room.notify_all()

    async def _run(self) -> None:
        loop, written = asyncio.get_running_loop(), -math.inf
        while True:
            batch = [await self._queue.get()]
            # A first event goes at once; those that come while it is written are the next transaction.
            await asyncio.sleep(max(0.0, written + self._collect_s - loop.time()))
            size = batch[0].size
            while len(batch) < self._batch_max and size < self._batch_bytes_max and not self._queue.empty():
                batch.append(self._queue.get_nowait())
                size += batch[-1].size
            try:
                await self._write(batch)
            finally:
                written = loop.time()
                await self._give(batch)
                for _ in batch:
                    self._queue.task_done()

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        try:
            await self._append([w.event for w in batch])
        except EventError as error:  # nothing was written: the bad event must not take the others along
            if len(batch) > 1:
                for one in batch:
                    await self._write([one])
                return
            _settle(batch, error)
        except LogError as error:
            _settle(batch, error)
        except Exception as error:  # no reason of the log's own: it still belongs to those who wait
            _settle(batch, LogError(f"the log failed with {type(error).__name__}: {error}"))
        else:
            _settle(batch, None)

    async def _append(self, events: Sequence[Event]) -> None:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._retry_s_max, RETRY_S_MIN
        while True:
            try:
                await loop.run_in_executor(self._thread, self._log.append, events)
                return
            except LogUnavailable as error:
                if loop.time() + pause > until:
                    raise LogError(
                        f"the log could not be reached for {self._retry_s_max:g} s; {len(events)} events "
                        f"are not in it: {error}"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_S_STEP_MAX)


def _size(event: Event) -> int:
    """About the bytes that an event holds in memory."""
    fields = (getattr(event, name) for name in event.__struct_fields__)
    return EVENT_OVERHEAD_BYTES + sum(len(value) for value in fields if isinstance(value, bytes | str))


def _settle(batch: Sequence[_Waiting], error: Exception | None) -> None:
    for waiting in batch:
        if waiting.done.done():
            continue  # who waited was cancelled
        if error is None:
            waiting.done.set_result(None)
        else:
            waiting.done.set_exception(error)
