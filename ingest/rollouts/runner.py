"""The runner: launches the executions of the log's groups, oldest first, and reports how they end.

    python -m ingest.rollouts.runner --run RUN --proxy http://127.0.0.1:PORT

    groups --> launching (pure) --> execution.launched --> harness against {proxy}/x/EXECUTION
                                                               |
           execution.finished, execution.scored  <-- POST .../close, assessed

It keeps no state of its own: started again after any death, it reads the log, reports what was under
way as lost, and launches those places again.  A live execution is never stopped for anything but its
own time limit; SIGTERM ends the runner at once and leaves the live ones to be found lost.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import aiohttp

from ingest.identity import read_secret
from ingest.rollouts.executing import Executor, describe
from ingest.rollouts.harnesses import Harness, HarnessError, ProxyLost, Setting, make_harness
from ingest.rollouts.launching import TOPICS, Launch, Launching, heal
from ingest.rollouts.publishing import Publisher
from lake.blobs import Blobs
from lake.config import Config, Rollout
from lake.events import Event, EventError, ExecutionLaunched
from lake.failure import reach
from lake.follow import Follower
from lake.layout import NotARun, Run
from lake.log import Log, LogError, Record, now_us
from lake.wire import event_of

logger = logging.getLogger("headrace.runner")

HEALTH_WAIT_S = 120.0  # a proxy that is started again reads its log first: seconds
HEALTH_PAUSE_S = 0.1
# Before the proxy is asked after a loss: 0.25, 1, 4, 15, 15, ... s while nothing ends well in between,
# so that the attempts of a place outlast an engine that is started again.
LOSS_PAUSE_S, LOSS_PAUSE_S_MAX = 0.25, 15.0
READ_WAIT_S = 0.2  # also how long a stop may take
CATCH_UP_WAIT_S = 60.0  # without a single record of those that the log says it has
# Shorter than any server's own (5 s is usual): a connection that it closes just as we send looks like
# a lost proxy.
KEEP_ALIVE_S = 2.0


class RunnerError(RuntimeError):
    """The runner cannot go on: why, and what to do."""


WRONG_USE = (NotARun, HarnessError)
EXPECTED = (*WRONG_USE, RunnerError, LogError, EventError)


def _decode(record: Record, blobs: Blobs | None) -> Event | None:
    """The event of a record; None for a gap, and, with a warning, for one that does not decode: the lake
    keeps it.
    """
    try:
        return event_of(record, blobs)
    except EventError as error:
        logger.warning("left out %s/%d at %d: %s", record.topic, record.partition, record.offset, error)
        return None


def catch_up(log: Log, launching: Launching) -> dict[tuple[str, int], int]:
    """Fold the log up to its present end; where the topic `groups` is to be read on from.

    Raises LogUnavailable when records that the log says it has do not come.
    """
    follower = Follower(log, TOPICS)
    try:
        for event in follower.catch_up():
            launching.apply(event)
        return {lane: at for lane, at in follower.positions().items() if lane[0] == "groups"}
    finally:
        follower.close()


class Runner:
    """Executions of one run.  Everything it depends on is given; `work` is its whole life."""

    def __init__(
        self,
        *,
        log: Log,
        publisher: Publisher,
        harness: Harness,
        http: aiohttp.ClientSession,
        proxy: str,
        secret: bytes,
        rollout: Rollout,
    ) -> None:
        self._log, self._publisher, self._harness, self._http = log, publisher, harness, http
        self._proxy, self._rollout = proxy.rstrip("/"), rollout
        self._executor = Executor(harness=harness, http=http, proxy=proxy, secret=secret, rollout=rollout)
        self._launching = Launching(rollout.attempts_max)
        self._running = 0
        self._losses = 0  # times in a row that the proxy was doubted, with nothing ended well in between
        self._wake = asyncio.Event()  # something to launch, or room for it
        self._doubt = asyncio.Event()  # the proxy is to be seen before anything is launched
        self._doubt.set()

    async def work(self) -> None:
        """Read the log, settle what an earlier runner left, then launch until cancelled.

        Raises RunnerError when the proxy stays away, LogError when the log does.
        """
        start = await asyncio.to_thread(catch_up, self._log, self._launching)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run())
            await self._publish(heal(self._launching, evaluator=self._harness.evaluator, now_us=now_us()))
            tasks.create_task(self._watch_proxy())
            tasks.create_task(self._read_groups(start))
            while True:
                self._wake.clear()
                if not self._doubt.is_set():
                    for launch in self._launching.next(self._rollout.concurrent_executions - self._running):
                        self._running += 1
                        launched = self._launched(launch)
                        self._launching.apply(launched)
                        tasks.create_task(self._one(launch, launched))
                await self._wake.wait()

    async def _read_groups(self, start: dict[tuple[str, int], int]) -> None:
        loop, reader = asyncio.get_running_loop(), self._log.reader(start)
        with ThreadPoolExecutor(1, "groups") as thread:
            try:
                while True:
                    for record in await loop.run_in_executor(thread, reader.poll, READ_WAIT_S):
                        if event := _decode(record, self._log.blobs):
                            self._launching.apply(event)
                            self._wake.set()
            finally:
                thread.submit(reader.close)  # after the poll under way

    async def _watch_proxy(self) -> None:
        """Whenever there is doubt, launch nothing until the proxy answers."""
        while True:
            await self._doubt.wait()
            if self._losses:
                await asyncio.sleep(min(LOSS_PAUSE_S * 4 ** (self._losses - 1), LOSS_PAUSE_S_MAX))
            since = time.monotonic()
            while not await self._healthy():
                if time.monotonic() - since > HEALTH_WAIT_S:
                    raise RunnerError(
                        f"{self._proxy}/health did not answer for {HEALTH_WAIT_S:g} s; start the proxy there"
                    )
                await asyncio.sleep(HEALTH_PAUSE_S)
            self._doubt.clear()
            self._wake.set()

    async def _healthy(self) -> bool:
        try:
            limit = aiohttp.ClientTimeout(total=5)
            async with self._http.get(f"{self._proxy}/health", timeout=limit) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    # --------------------------------------------------------------------------- one execution
    async def _one(self, launch: Launch, launched: Event) -> None:
        """Launched, run, closed, assessed, reported."""
        try:
            await self._publisher.publish([launched])
            reach("runner.after-launched")
            try:
                ended = await self._executor.execute(launch)
                self._losses = 0
            except ProxyLost as error:
                logger.warning("%s is lost: %s", launch.execution_id, error)
                ended = self._lost(launch, error)
            task = asyncio.current_task()
            if task is None or task.cancelling():  # a harness that made another error of its cancellation
                raise asyncio.CancelledError
            reach("runner.before-finished")
            await self._publish(ended)
            reach("runner.after-finished")
        finally:
            self._running -= 1
            self._wake.set()

    def _lost(self, launch: Launch, error: ProxyLost) -> Sequence[Event]:
        if not self._doubt.is_set():
            self._losses += 1
            self._doubt.set()
        detail, evaluator = describe(error), self._harness.evaluator
        return self._launching.lost(launch, detail, evaluator=evaluator, now_us=now_us())

    async def _publish(self, events: Sequence[Event]) -> None:
        if events:
            await self._publisher.publish(events)
        for event in events:
            self._launching.apply(event)

    def _launched(self, launch: Launch) -> ExecutionLaunched:
        return ExecutionLaunched(
            time_us=now_us(),
            group_id=launch.group_id,
            execution_id=launch.execution_id,
            index=launch.index,
            attempt=launch.attempt,
        )


# --------------------------------------------------------------------------------------- process
@asynccontextmanager
async def _client(concurrent: int) -> AsyncIterator[aiohttp.ClientSession]:
    """Every wait is bounded: connecting here, an execution by its time limit, the rest where they are."""
    connector = aiohttp.TCPConnector(limit=2 * concurrent + 8, keepalive_timeout=KEEP_ALIVE_S)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as http:
        yield http


async def serve(run: Run, config: Config, proxy: str) -> None:
    """Work until SIGTERM or SIGINT.  Raises RunnerError, LogError, HarnessError."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, me.cancel)
    log = run.open_log(config)
    publisher = Publisher(log)
    try:
        async with _client(config.rollout.concurrent_executions) as http:
            setting = Setting(
                seed=config.seed,
                rollout=config.rollout,
                http=http,
                model=config.name,
                workspaces=run.workspaces,
            )
            harness = make_harness(config.rollout.harness, setting)
            await Runner(
                log=log,
                publisher=publisher,
                harness=harness,
                http=http,
                proxy=proxy,
                secret=read_secret(run),
                rollout=config.rollout,
            ).work()
    except asyncio.CancelledError:
        logger.info("stopped")
    finally:
        try:
            await publisher.close()
        finally:
            log.close()


def _alone(run: Run) -> IO[str]:
    """A lock that ends with this process: two runners would launch everything twice."""
    lock = (run.path / "runner.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunnerError(f"{run.path}: another runner is at work on this run; stop it first") from error
    return lock


def _unfold(error: BaseException) -> list[BaseException]:
    """What a TaskGroup wrapped."""
    if isinstance(error, BaseExceptionGroup):
        return [one for inner in error.exceptions for one in _unfold(inner)]
    return [error]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 after a stop, 1 where it could not go on, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m ingest.rollouts.runner", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--proxy", required=True, help="the capture proxy, http://127.0.0.1:PORT")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    import uvloop

    run = Run(given.run)
    try:
        config = run.config()
        with _alone(run):
            uvloop.run(serve(run, config, given.proxy))
    except Exception as error:
        errors = _unfold(error)
        if not all(isinstance(e, EXPECTED) for e in errors):
            raise
        print("\n".join(map(str, errors)), file=sys.stderr)
        return 2 if any(isinstance(e, WRONG_USE) for e in errors) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
