"""The runner as a process, on a real log, against a server that answers as a proxy would."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from ingest.courier.accidents import Accidents
from ingest.courier.task import make_task
from ingest.identity import read_secret, verify
from lake.config import parse
from lake.events import TOPICS, GroupDispatched, ModelCalled
from lake.layout import Run
from lake.log import now_us, open_log
from lake.wire import decode
from tests.support.courier_agents import clumsy_by_request, serving


class World:
    """A run's folder and its log."""

    def __init__(self, path, **rollout):
        self.run = Run(path)
        self.config = parse({"rollout": rollout, "proxy": {"rejoin_s": 0}})
        self.run.config_file.write_bytes(msgspec.json.encode(self.config))
        self.log = open_log(self.run.log_url(self.config))
        self.dispatched = 0

    def dispatch(self, groups, version=0, task=None):
        events = [
            GroupDispatched(
                time_us=now_us(),
                group_id=f"g{number:04d}",
                task=task or make_task(0, number),
                size=self.config.rollout.group_size,
                policy_version=version,
                boundary=version,
            )
            for number in range(self.dispatched, self.dispatched + groups)
        ]
        self.dispatched += groups
        self.log.append(events)

    def events(self):
        reader = self.log.reader({(t, p): 0 for t in TOPICS for p in range(self.log.partitions(t))})
        found = []
        while any(reader.lag().values()):
            found += [decode(r.headers, r.value) for r in reader.poll(0)]
        reader.close()
        return found

    def of(self, *types):
        return [e for e in self.events() if e.TYPE in types]

    @asynccontextmanager
    async def runner(self, proxy, kill_at=""):
        environment = os.environ | {"HEADRACE_KILL_AT": kill_at, "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ingest.rollouts.runner", "--run", str(self.run.path), "--proxy", proxy,
            env=environment, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        process.said = asyncio.create_task(process.stderr.read())
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.said

    async def until(self, holds, process=None, wait_s=60.0):
        """Wait for something to hold, as long as the process is up."""
        deadline = time.monotonic() + wait_s
        while not holds():
            if process is not None and process.returncode is not None:
                pytest.fail(f"the runner ended with {process.returncode}: {(await process.said).decode()}")
            assert time.monotonic() < deadline, self.tally()
            await asyncio.sleep(0.05)

    def tally(self):
        return Counter(e.TYPE for e in self.events())

    def statuses(self):
        return Counter(e.status for e in self.of("execution.finished"))

    def places(self):
        """(group, index) -> the latest attempt's status and assessment, or None while one is lacking."""
        ends = {e.execution_id: e.status for e in self.of("execution.finished")}
        scores = {e.execution_id: e.assessment for e in self.of("execution.scored")}
        size = self.config.rollout.group_size
        places = {(f"g{n:04d}", i): None for n in range(self.dispatched) for i in range(size)}
        attempts = defaultdict(list)
        for e in self.of("execution.launched"):
            attempts[e.group_id, e.index].append((e.attempt, e.execution_id))
        for place, launched in attempts.items():
            assert [a for a, _ in sorted(launched)] == list(range(len(launched)))
            _, last = max(launched)
            if last in ends and last in scores and (ends[last] != "lost" or scores[last] == "missing"):
                places[place] = (ends[last], scores[last])
        return places

    def settled(self):
        return all(self.places().values())

    def check(self):
        """Every place ended and was assessed once; nothing was published twice."""
        events = self.events()
        assert set(Counter(e.event_id for e in events).values()) == {1}
        scored = Counter(e.execution_id for e in events if e.TYPE == "execution.scored")
        assert set(scored.values()) <= {1}
        assert self.settled()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path, group_size=4, concurrent_executions=10)
    yield made
    made.log.close()


async def test_runs_all_groups_and_reports_each_execution(world):
    world.dispatch(20)
    async with serving(clumsy_by_request) as server, world.runner(server.url) as process:
        await world.until(world.settled, process)
        world.dispatch(5, version=1)  # found while it is at work
        await world.until(world.settled, process)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    world.check()
    launched, ends = world.of("execution.launched"), world.of("execution.finished")
    scores = {e.execution_id: e for e in world.of("execution.scored")}
    assert len(launched) == len(ends) == len(scores) == 100
    assert server.closed == {e.execution_id: 1 for e in launched}
    assert server.live_max <= 10
    secret = read_secret(world.run)
    for execution, _, key, _ in server.asked:
        identity = verify(secret, key.removeprefix("Bearer "))
        assert (identity.group_id, identity.execution_id) == (execution.split(".")[0], execution)
    for e in ends:
        index = int(e.execution_id.split(".")[1])
        accidents = Accidents.drawn(0, e.group_id, index)
        score = scores[e.execution_id]
        assert e.calls == server.calls[e.execution_id]
        assert e.status == ("harness_timeout" if accidents.stop_after else "completed")
        if accidents.evaluator_crashes:
            assert (score.assessment, score.value) == ("missing", None)
            assert "EvaluatorCrashed" in score.detail
        else:
            assert score.assessment == ("partial" if accidents.stop_after else "scored")
            assert score.value == sum(json.loads(score.detail).values()) / 6
    order = [e.execution_id for e in launched]
    assert order == sorted(order), "oldest group first, then by place"
    assert 0.15 < sum(s.value for s in scores.values() if s.value is not None) / 100 < 0.4


@pytest.mark.parametrize(
    "kill_at", ["runner.after-launched:9", "runner.before-finished:7", "runner.after-finished:12"]
)
async def test_killed_at_a_named_point_and_started_again(world, kill_at):
    world.dispatch(8)
    async with serving(clumsy_by_request, think_s=0.02) as server:
        async with world.runner(server.url, kill_at) as process:
            assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
        assert not world.settled()
        async with world.runner(server.url) as process:
            await world.until(world.settled, process)
    world.check()
    lost = [e for e in world.of("execution.finished") if e.status == "lost"]
    assert lost
    assert {e.calls for e in lost} == {0}
    again = [e for e in world.of("execution.launched") if e.attempt == 1]
    assert {e.execution_id for e in again} == {f"{e.execution_id}r1" for e in lost}


async def test_killed_again_and_again(tmp_path):
    world = World(tmp_path, group_size=4, concurrent_executions=10, attempts_max=2)
    world.dispatch(10)
    async with serving(clumsy_by_request, think_s=0.01) as server:
        for _ in range(3):
            async with world.runner(server.url) as process:
                before = world.tally()["execution.launched"]
                await world.until(lambda n=before: world.tally()["execution.launched"] > n + 3, process)
                process.kill()
        async with world.runner(server.url) as process:
            await world.until(world.settled, process)
    world.check()
    attempts = Counter((e.group_id, e.index) for e in world.of("execution.launched"))
    assert max(attempts.values()) == 2, "some place was lost in all of its attempts"
    by_end = Counter(world.places().values())
    assert by_end["lost", "missing"] > 0
    assert by_end["completed", "scored"] > 0
    world.log.close()


async def test_a_score_that_never_came_is_missing(world):
    """Finished, not scored: the append was torn between two topics."""
    world.dispatch(1)
    async with serving(clumsy_by_request) as server:
        async with world.runner(server.url) as process:
            await world.until(world.settled, process)
        with sqlite3.connect(world.run.path / "log.db") as connection:
            connection.execute("delete from scores_0 where offset = (select max(offset) from scores_0)")
        connection.close()
        async with world.runner(server.url) as process:
            await world.until(world.settled, process)
    world.check()
    last = max(world.of("execution.scored"), key=lambda e: e.time_us)
    assert last.detail == "the runner ended before the score was known to be in the log"
    assert world.tally()["execution.launched"] == 4


async def test_a_proxy_that_goes_and_comes_back(world):
    world.dispatch(6)
    async with AsyncExitStack() as proxy:
        first = await proxy.enter_async_context(serving(clumsy_by_request, think_s=0.02))
        async with world.runner(first.url) as process:
            await world.until(lambda: len(first.closed) >= 4, process)
            await proxy.aclose()  # connections are cut, and nobody listens any more
            await world.until(lambda: "lost" in world.statuses(), process)
            await asyncio.sleep(0.5)
            launched = world.of("execution.launched")
            assert len(launched) <= len(first.closed) + 20, "launched while nobody answers"
            async with serving(clumsy_by_request, port=int(first.url.rsplit(":", 1)[1])) as second:
                second.sealed = {e.execution_id for e in launched}  # it does not know them
                await world.until(world.settled, process)
                process.terminate()
                assert await process.wait() == 0
    world.check()
    assert 0 < world.statuses()["lost"] <= 20
    assert "crashed" not in world.statuses()


async def test_an_execution_that_the_proxy_seals_is_lost_and_launched_again(world):
    world.dispatch(2)
    async with serving(clumsy_by_request) as server, world.runner(server.url) as process:
        server.sealed = {"g0000.1", "g0001.2"}
        await world.until(world.settled, process)
    world.check()
    ends = {e.execution_id: e for e in world.of("execution.finished")}
    assert {name for name, e in ends.items() if e.status == "lost"} == server.sealed
    assert "409" in ends["g0000.1"].detail
    assert ends["g0000.1r1"].status != "lost"


async def test_sigterm_in_the_middle_publishes_nothing_wrong(world):
    world.dispatch(3)
    async with serving(clumsy_by_request, think_s=30) as server:
        async with world.runner(server.url) as process:
            await world.until(lambda: len(server.asked) >= 10, process)
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) == 0
        assert world.tally()["execution.launched"] == 10
        assert world.of("execution.finished", "execution.scored") == []
        server.think_s = 0
        async with world.runner(server.url) as process:
            await world.until(world.settled, process)
    world.check()
    assert set(world.places().values()) <= {
        ("completed", "scored"), ("completed", "missing"), ("harness_timeout", "partial"),
    }  # fmt: skip


async def test_time_limits_and_crashes_of_the_harness(tmp_path):
    world = World(tmp_path, group_size=2, concurrent_executions=8, harness_timeout_s=0.5)
    world.dispatch(1)
    world.dispatch(1, task='{"task":"another"}')
    async with serving(clumsy_by_request, think_s=30) as server, world.runner(server.url) as process:
        await world.until(world.settled, process)
        server.think_s, server.refusal = 0, (400, "what is this?")
        world.dispatch(1)
        await world.until(world.settled, process)
    world.check()
    places = world.places()
    assert places["g0000", 0] == places["g0000", 1] == ("harness_timeout", "partial")
    assert places["g0001", 0] == places["g0002", 1] == ("crashed", "missing")
    details = {e.group_id: e.detail for e in world.of("execution.finished")}
    assert details["g0000"] == "stopped after rollout.harness_timeout_s = 0.5 s"
    assert details["g0001"].startswith("TaskError: not a courier task")
    assert "400: what is this?" in details["g0002"]
    assert {e.value for e in world.of("execution.scored") if e.group_id == "g0000"} == {0.0}
    world.log.close()


async def test_two_runners_and_bad_input_are_refused(world, tmp_path):
    async with serving(clumsy_by_request) as server, world.runner(server.url) as first:
        world.dispatch(1)
        await world.until(world.settled, first)
        async with world.runner(server.url) as second:
            assert await second.wait() == 1
            assert b"another runner is at work on this run" in await second.said
    world.run.config_file.write_bytes(msgspec.json.encode(parse({"rollout": {"harness": "nobody"}})))
    async with world.runner("http://127.0.0.1:1") as process:
        assert await process.wait() == 2
        assert b"rollout.harness is 'nobody'; known: command, courier" in await process.said
    world.run.config_file.unlink()
    async with world.runner("http://127.0.0.1:1") as process:
        assert await process.wait() == 2
        assert b"is not a run" in await process.said
    assert ModelCalled.TYPE not in world.tally()
