"""A few calls at the same time: all of them have ended when it returns, whatever one of them raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any


class AtOnce:
    """Threads that are kept from one time to the next: the memory of those that end is not given back."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)

    def each(self, work: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
        """Call `work` with each of the arguments; wait for all; then raise what the first of them raised."""
        futures = [self._pool.submit(work, *those) for those in arguments]
        wait(futures)
        for future in futures:
            future.result()
