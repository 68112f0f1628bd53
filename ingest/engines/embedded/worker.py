"""The thread that owns the model: it takes commands between steps and hands calls back in batches.

READY <-> PAUSED (in place: running calls stand still; new ones wait)      any -> STOPPED
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ingest.engines.embedded.batch import Batch, Call

Deliver = Callable[[list[Call]], None]
T = TypeVar("T")


class WorkerStopped(RuntimeError):
    """The model thread is over: stopped, or ended by an error that it printed."""


class Worker:
    """Runs `Batch.step` in a thread of its own for as long as there is work.

    - `command` runs a function on the batch between two steps; its result comes as a future.
    - Calls that a step finished, or that stream, reach `deliver` on the event loop, one callback a step.
    - While `paused` nothing is computed; commands still run.
    - An error inside a step ends the thread: `alive` turns false, `on_death` runs on the event loop.
    """

    def __init__(
        self, batch: Batch, *, loop: asyncio.AbstractEventLoop, deliver: Deliver, on_death: Callable[[], None]
    ) -> None:
        self._batch, self._loop, self._deliver, self._on_death = batch, loop, deliver, on_death
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self.paused = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def add(self, call: Call) -> None:
        """Queue a call; it comes back through `deliver`."""
        self._post(lambda: self._batch.add(call))

    def command(self, act: Callable[[Batch], T]) -> asyncio.Future[T]:
        """Run `act` between two steps.  The future fails with what `act` raises, or WorkerStopped."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(act(self._batch))
            except Exception as error:
                future.set_exception(error)

        if not self.alive:
            future.set_exception(WorkerStopped("the model thread has stopped; restart the engine"))
        else:
            self._post(run)
        return asyncio.wrap_future(future, loop=self._loop)

    def abort(self, rid: str | None, why: str) -> asyncio.Future[int]:
        """Take out one call, or all (None); they are delivered as aborted.  Gives their number."""

        def act(batch: Batch) -> int:
            calls = batch.abort(rid, why)
            self._hand_over(calls)
            return len(calls)

        return self.command(act)

    def stop(self, wait_s: float) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(wait_s)

    def _post(self, run: Callable[[], None]) -> None:
        self._commands.append(run)
        self._wake.set()

    def _hand_over(self, calls: list[Call]) -> None:
        if calls:
            self._loop.call_soon_threadsafe(self._deliver, calls)

    def _run(self) -> None:
        batch = self._batch
        try:
            while not self._stopping:
                while self._commands:
                    self._commands.popleft()()
                if self.paused or not (batch.waiting or batch.running):
                    self._wake.wait()
                    self._wake.clear()
                else:
                    self._hand_over(batch.step())
        except Exception:
            traceback.print_exc()
            self._loop.call_soon_threadsafe(self._on_death)
