"""Where shards of work run: in this process, in processes of this machine, or on a Ray cluster.

    with executor_of(workers=4) as executor:
        counts = Work(executor).do("lanes", copy_lane, shards)

A task is a function of a module, a shard its one argument; both travel by pickle.  A shard that failed
or whose process died is run again, TRIES times in all, so a task must bear being run twice.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

TRIES = 3
CONNECT_S = 10.0
"""A cluster on this network answers within milliseconds."""

Shard = TypeVar("Shard")
Answer = TypeVar("Answer")
Outcome = tuple[int, Any]
"""(index of a shard, its answer or the exception that it ended with)."""
Watch = Callable[[str, int, int], None]


class ShardFailed(RuntimeError):
    """Shards that failed TRIES times: which, and why."""


class NoCluster(RuntimeError):
    """No Ray cluster answers at this address."""


class Executor(Protocol):
    """Runs a task on shards."""

    places: set[str]
    """Where shards have run: process ids, or nodes of the cluster."""

    def run(self, task: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Outcome]:
        """The outcome of each shard, in the order in which they end."""


class Work:
    """An executor, and who watches: `watch(stage, done, all)` after each shard."""

    def __init__(self, executor: Executor, watch: Watch = lambda _stage, _done, _all: None) -> None:
        self.executor, self._watch = executor, watch

    def do(self, stage: str, task: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """The answer of every shard, in their order.

        Raises ShardFailed where one failed TRIES times, and a ValueError of a task at once: that is
        wrong input, which does not become right.
        """
        answers: dict[int, Answer] = {}
        left = list(range(len(shards)))
        self._watch(stage, 0, len(shards))
        for _ in range(TRIES):
            failed: dict[int, BaseException] = {}
            for index, outcome in self.executor.run(task, [shards[i] for i in left]):
                if isinstance(outcome, ValueError):
                    raise outcome
                if isinstance(outcome, BaseException):
                    failed[left[index]] = outcome
                else:
                    answers[left[index]] = outcome
                    self._watch(stage, len(answers), len(shards))
            left = sorted(failed)
            if not left:
                return [answers[i] for i in range(len(shards))]
        what = "; ".join(f"{shards[i]}: {type(failed[i]).__name__}: {failed[i]}" for i in left[:5])
        raise ShardFailed(
            f"{stage}: {len(left)} of {len(shards)} shards failed {TRIES} times ({what}); see to the cause, "
            "then run the same command again"
        )


class Inline:
    """One shard after the other, in this process."""

    def __init__(self) -> None:
        self.places = {f"process {os.getpid()}"}

    def run(self, task: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Outcome]:
        for index, shard in enumerate(shards):
            try:
                yield index, task(shard)
            except Exception as error:
                yield index, error


def _placed(task: Callable[[Any], Any], shard: Any) -> tuple[str, Any]:
    return f"process {os.getpid()}", task(shard)


class Processes:
    """So many processes of this machine, each made anew (spawn) and kept for many shards."""

    def __init__(self, workers: int) -> None:
        self.places: set[str] = set()
        self._workers = workers
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, multiprocessing.get_context("spawn"))

    def run(self, task: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Outcome]:
        futures: dict[Future[tuple[str, Any]], int] = {
            self._pool.submit(_placed, task, shard): index for index, shard in enumerate(shards)
        }
        broken = False
        while futures:
            done, _ = wait(futures, return_when=FIRST_COMPLETED)
            for future in done:
                index, error = futures.pop(future), future.exception()
                if error is None:
                    place, answer = future.result()
                    self.places.add(place)
                    yield index, answer
                else:
                    broken = broken or not self._alive()
                    yield index, error
        if broken:  # a process died and took the pool with it
            self._pool.shutdown(wait=True)
            self._pool = self._start()

    def _alive(self) -> bool:
        return not getattr(self._pool, "_broken", False)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _on_node(task: Callable[[Any], Any], shard: Any) -> tuple[str, Any]:
    import ray

    return f"node {ray.get_runtime_context().get_node_id()}", task(shard)


class OnRay:
    """The nodes of a Ray cluster, one core a shard.

    Every node must have this software, and see the log and the lake under the same addresses; keys of
    an object store or of Kafka come from each node's own environment.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError(f"--ray {address}: ray is not installed; pip install 'headrace[ray]'") from error
        self.places: set[str] = set()
        self._ray = ray
        try:
            host, colon, port = address.rpartition(":")
            if colon and "://" not in address:  # ray.init would try for minutes, and end the process
                socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise NoCluster(
                f"no Ray cluster answers at {address} ({error}); start one by `ray start --head`, give its "
                "address as HOST:PORT"
            ) from error

    def run(self, task: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Outcome]:
        remote = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_on_node)
        waiting = {remote.remote(task, shard): index for index, shard in enumerate(shards)}
        while waiting:
            (ready,), _ = self._ray.wait(list(waiting), num_returns=1)
            index = waiting.pop(ready)
            try:
                place, answer = self._ray.get(ready)
            except self._ray.exceptions.RayTaskError as error:
                yield index, error.cause if isinstance(error.cause, Exception) else error
            except self._ray.exceptions.RayError as error:
                yield index, error
            else:
                self.places.add(place)
                yield index, answer

    def close(self) -> None:
        self._ray.shutdown()


@contextmanager
def executor_of(workers: int = 1, ray_address: str | None = None) -> Iterator[Executor]:
    """Ray where an address is given, else `workers` processes; one worker is this process."""
    if ray_address is None and workers == 1:
        yield Inline()
        return
    executor = Processes(workers) if ray_address is None else OnRay(ray_address)
    try:
        yield executor
    finally:
        executor.close()
