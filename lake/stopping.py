"""Queries that can be stopped: by Ctrl-C, by a deadline, and by the memory that the process may take.

    runner = Runner(lake, timeout_s=60)
    runner.begin()
    for batch in runner.each(batches): ...

DuckDB computes on a thread of its own here, since one in the main thread keeps Python from hearing Ctrl-C
until it ends.  Its limit of memory does not count the values of a vector that is being computed
(`repeat('x', 10**10)` takes 10 GB under a limit of 1 GB): `bound_memory` lets the system refuse those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from lake.query import Lake
from lake.query_errors import QueryStopped

Result = TypeVar("Result")
INTERRUPT_EVERY_S = 0.2
STOPS_WITHIN_S = 30.0  # an interrupted query ends at the next vector; then it is given up
ASKED_AGAIN_S = 3.0  # the same, where Ctrl-C came twice
BESIDE_BYTES = 1 << 30  # of this process, beside what queries hold


class QueryHangs(QueryStopped):
    """A query that was interrupted and does not end: its thread is still at it, the process is to end."""


class Runner:
    """The thread on which the queries of one lake run."""

    def __init__(self, lake: Lake, timeout_s: float | None = None) -> None:
        """`timeout_s`: what one query may take, with showing its rows; None: as long as it takes."""
        self._lake, self._timeout_s = lake, timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="query")
        self._until: float | None = None

    def begin(self) -> None:
        """The next query begins: its time counts from here."""
        self._until = None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def call(self, part: Callable[[], Result]) -> Result:
        """Run a part of the query there.  Raises QueryStopped where it was interrupted or took too long."""
        future = self._thread.submit(part)
        try:
            left = None if self._until is None else max(self._until - time.monotonic(), 0.0)
            wait([future], left)
        except KeyboardInterrupt:
            self._stop(future)
            raise QueryStopped("interrupted") from None
        if not future.done():
            self._stop(future)
            raise QueryStopped(f"the query took longer than {self._timeout_s:g} s, and was stopped")
        return future.result()

    def each(self, parts: Iterable[Result]) -> Iterator[Result]:
        """What an iterator gives, each part found there."""
        iterator, end = iter(parts), object()
        while True:
            part = self.call(lambda: next(iterator, end))
            if part is end:
                return
            yield part  # type: ignore[misc]  # not the end

    def _stop(self, future: Future[Result]) -> None:
        """Interrupt until it ends: an interrupt between two queries of one call stops neither."""
        began = time.monotonic()
        until = began + STOPS_WITHIN_S
        while not future.done():
            self._lake.interrupt()
            try:
                wait([future], INTERRUPT_EVERY_S)
            except KeyboardInterrupt:
                until = began + ASKED_AGAIN_S
            if not future.done() and time.monotonic() > until:
                raise QueryHangs("interrupted, but the query does not end: headrace ends instead")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def bound_memory(query_bytes: int) -> None:
    """Let the system refuse memory beyond what queries may hold and BESIDE_BYTES more, where it can (Linux).

    What is refused ends the query (QueryStopped: out of memory), not the process.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return
    import resource

    held = next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if "VmData" in line)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = held + query_bytes + BESIDE_BYTES
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
