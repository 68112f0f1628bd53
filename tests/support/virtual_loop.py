"""An event loop whose time stands still while anything can be done, and then goes on to the next timer.

Ten minutes of waiting pass at once, and everything happens in an order that the seed alone decides: what
is given to a thread runs in the loop, after a random while.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

THREAD_S_MAX = 0.02
PROCESS: contextvars.ContextVar[int] = contextvars.ContextVar("process", default=0)
"""The simulated process that a task is of; tasks that it starts are of the same."""


class StandsStill(Exception):
    """Everything waits, and nothing will ever happen."""


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise StandsStill(f"after {self.loop.time():g} s: {asyncio.all_tasks(self.loop)}")
        if not ready and timeout:
            self.loop.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use it with `simulate`.  `kill` ends the tasks of a simulated process where they stand."""

    def __init__(self, rng: Random) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self
        self.passed, self._rng = 0.0, rng
        self._jobs: dict[asyncio.Future[Any], tuple[int, Callable[[], Any]]] = {}
        self._tasks: list[tuple[int, asyncio.Task[Any]]] = []
        self.set_task_factory(self._task)

    def time(self) -> float:
        return self.passed

    def _task(self, _: Any, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, **options)
        self._tasks = [(p, t) for p, t in self._tasks if not t.done()]
        self._tasks.append((PROCESS.get(), task))
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        self._jobs[future] = PROCESS.get(), lambda: func(*args)
        self.call_later(self._rng.random() * THREAD_S_MAX, self._job, future)
        return future

    def _job(self, future: asyncio.Future[Any]) -> None:
        _, job = self._jobs.pop(future, (0, None))
        if job is None or future.cancelled():
            return
        try:
            result = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def of_process(self, process: int) -> list[asyncio.Task[Any]]:
        """Its tasks that have not ended."""
        return [t for p, t in self._tasks if p == process and not t.done()]

    async def kill(self, process: int) -> None:
        """End a process: what its threads were at is done as a whole or not at all."""
        for future in [f for f, (of, _) in self._jobs.items() if of == process]:
            _, job = self._jobs.pop(future)
            if self._rng.random() < 0.5:
                with contextlib.suppress(Exception):
                    job()
        tasks = self.of_process(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def of_process(process: int) -> Iterator[None]:
    """Tasks that are started inside are of this process."""
    token = PROCESS.set(process)
    try:
        yield
    finally:
        PROCESS.reset(token)


def simulate(main: Coroutine[Any, Any, Any], rng: Random) -> None:
    """Run to the end in a loop of its own; whatever task is left then is a fault."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(rng)) as runner:

        async def whole() -> None:
            await main
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left: {left}"

        runner.run(whole())
