"""The proxy under everything at once, in time that is simulated: what clients got, and what the log says.

Executions of one or two agents in any dialect, which hang up, ask again, ask twice, edit their history;
an engine that fails, aborts, changes versions and takes minutes, or several that leave and come back; a log
that is away; a proxy that is killed and started again; states that do not fit.  A seed replays:
`pytest ... -k "[7]"`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from ingest.engines.draining import drain, undrain
from ingest.proxy.calls import Limits
from ingest.proxy.history import of_minted
from ingest.proxy.parsing import parse
from ingest.proxy.rendering import Renderer
from ingest.rederive import derive_set, fresh_lake
from lake import events as ev
from lake.blobs import Blobs
from lake.config import Admission
from lake.experts import along, fetch, path_to
from lake.log import LogUnavailable, now_us, open_log
from lake.query import open_lake
from tests.support.captured import whole
from tests.support.routing import EXPERTS, routed
from tests.support.running_proxy import read_events
from tests.support.simulated_agents import Agent, Reply, World
from tests.support.simulated_client import DIALECTS, Call, Said, value_of
from tests.support.simulated_proxy import FailingEngine, FailingLog, SimulatedProxy, group_of
from tests.support.tiny_model import write_model_folder
from tests.support.virtual_loop import simulate

BATCHES, SCENARIOS = 10, 25


@pytest.fixture(scope="module")
def renderer(tmp_path_factory) -> Renderer:
    return Renderer.load(write_model_folder(tmp_path_factory.mktemp("model") / "m"))


@dataclass
class Past:
    """What a scenario left beside the log."""

    seed: int
    executions: list[str]
    replies: list[Reply]
    engine: FailingEngine
    processes: list[int]  # those that were killed
    counts: dict[str, int]
    experts: Blobs | None  # where routed experts were kept


# ---------------------------------------------------------------------------------- a scenario
def _limits(rng: Random) -> Limits:
    return Limits(
        context_tokens=100_000,
        new_tokens_max=400,
        temperature=1.0,
        keep_alive_s=rng.choice([1.0, 10.0]),
        rejoin_s=rng.choice([0.0, 1.0, 20.0]),
        continue_aborted=rng.random() < 0.7,
        state_bytes_max=rng.choice([1, 1 << 30]),
    )


async def _restarts(rng: Random, proxy: SimulatedProxy, killed: list[int]) -> None:
    while True:
        await asyncio.sleep(rng.random() * rng.choice([1.0, 10.0, 100.0]))
        killed.append(proxy.process)
        await proxy.kill()
        await asyncio.sleep(rng.random() * 2)
        await _started(proxy)


async def _started(proxy: SimulatedProxy) -> None:
    while proxy.app is None:
        try:
            await proxy.start()
        except LogUnavailable:
            await asyncio.sleep(0.5)


async def _troubles(rng: Random, log: FailingLog, engine: FailingEngine) -> None:
    try:
        while True:
            await asyncio.sleep(rng.random() * 20)
            log.away, engine.away = rng.random() < 0.4, rng.random() < 0.2
            engine.version += rng.random() < 0.3
            await asyncio.sleep(rng.random() * rng.choice([0.1, 1.0, 20.0]))
            log.away = engine.away = False
    finally:
        log.away = engine.away = False


async def _leaves(rng: Random, proxy: SimulatedProxy) -> None:
    """Its cells leave for a while, one at a time; never all for longer than clients would wait."""
    while True:
        await asyncio.sleep(rng.random() * rng.choice([1.0, 20.0]))
        if (cells := proxy.cells) is None:
            continue
        url = rng.choice(list(cells.pool.members))
        await drain(cells.pool, url, finish_s=rng.choice([0.0, 0.0, 5.0]))
        await asyncio.sleep(rng.random() * 20)
        undrain(cells.pool, url)


async def _scenario(seed: int, rng: Random, log, renderer: Renderer, pasts: list[Past]) -> None:
    failing = FailingLog(log)
    engine = FailingEngine(rng, renderer)
    capacities = [rng.choice([1, 2, 100]) for _ in range(rng.choice([0, 1, 2, 3]))]
    limits = replace(_limits(rng), experts=EXPERTS.count * (seed % 2))
    proxy = SimulatedProxy(failing, engine, renderer, limits, capacities)
    world = World(rng, proxy)
    names = [f"s{seed}.{k}" for k in range(rng.randint(1, 3))]
    past = Past(seed, names, world.replies, engine, [], {}, failing.blobs if limits.experts else None)
    group = f"s{seed}"
    log.append(
        [ev.GroupDispatched(time_us=now_us(), group_id=group, task="{}", size=len(past.executions),
                            policy_version=0, boundary=0)]
        + [ev.ExecutionLaunched(time_us=now_us(), group_id=group, execution_id=e, index=k)
           for k, e in enumerate(past.executions)]
    )  # fmt: skip
    await proxy.start()
    troubles = [asyncio.create_task(_troubles(rng, failing, engine))]
    if rng.random() < 0.7:
        troubles.append(asyncio.create_task(_restarts(rng, proxy, past.processes)))
    if capacities:
        troubles.append(asyncio.create_task(_leaves(rng, proxy)))
    agents = [
        Agent(world, execution, role, rng.choice(DIALECTS)).run(rng.randint(1, 5))
        for execution in past.executions
        for role in ("main", "sub-agent")[: rng.randint(1, 2)]
    ]
    await asyncio.gather(*agents)
    for task in troubles:
        task.cancel()
    await asyncio.gather(*troubles, return_exceptions=True)
    await _started(proxy)
    await _ended(rng, proxy, past)
    pasts.append(past)


async def _ended(rng: Random, proxy: SimulatedProxy, past: Past) -> None:
    """Close everything, as a runner does; nothing may be left."""
    for execution in past.executions:
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 100)
        got = await proxy.send(execution, "close")
        assert got.status == 200, got
        past.counts[execution] = msgspec.json.decode(got.body)["calls"]
        again = await proxy.send(execution, "close")
        assert again == got
    executions = proxy.executions
    assert not executions.open
    assert not executions.known.live
    assert not executions._wanted
    assert (executions._bytes, executions._bytes_all) == ({}, 0)
    await asyncio.gather(*(h for h in proxy.handlers if not h.cancelled()))
    left = proxy.loop.of_process(proxy.process)
    await proxy.stop()
    assert len(left) <= 2 + len(proxy.capacities), left  # the lifespan, the writer, the probes


# ------------------------------------------------------------------------------- what must hold
class Record:
    """What the log says of one execution."""

    def __init__(self, renderer: Renderer, calls: list[ev.ModelCalled], undelivered: set[int]) -> None:
        self.renderer, self.undelivered = renderer, undelivered
        self.by_id = {c.call_id: c for c in calls}
        assert sorted(self.by_id) == [c.call_id for c in calls] == list(range(len(calls)))
        self.said = {c.call_id: self._said(c) for c in calls if c.delivered}

    def _said(self, call: ev.ModelCalled) -> tuple[str, tuple[Call, ...]]:
        ids = ev.ids_from_bytes(call.output_ids)
        stopped = len(ids) > 0 and int(ids[-1]) in self.renderer.stop_ids
        found = parse(
            self.renderer.decode(ids[:-1] if stopped else ids),
            tools=(),
            cut=call.finish_reason == "length",
            thinking=False,
            form=self.renderer.form,
        )
        calls = (Call(f"call_{call.call_id:06d}_{k:02d}", n, a) for k, (n, a) in enumerate(found.calls))
        return found.text, tuple(calls)

    def calls_of(self, said: Said, role: str) -> list[int]:
        """The one call that a reply is of; several where it was cut before it said anything of its own."""
        if said.calls:
            (found,) = {number[0] for c in said.calls if (number := of_minted(c.id))}
            text, calls = self.said[found]
            assert (text, _values(calls)) == (said.text, _values(said.calls))
            return [found]
        found = [k for k, s in self.said.items() if s == (said.text, ()) and self.by_id[k].role == role]
        assert len(found) == 1 or (found and len(said.text) < 6), (said, found)
        return found


def _values(calls: tuple[Call, ...]):
    """What calls say, however their arguments are written."""
    return [(c.id, c.name, value_of(c.arguments)) for c in calls]


def _check_execution(record: Record, replies: list[Reply], past: Past) -> None:
    got, maybe = set[int](), set[int]()
    for reply in replies:
        found = record.calls_of(reply.said, reply.role)
        maybe |= set(found)
        got |= set(found if len(found) == 1 else [])
        before = record.calls_of(reply.base, reply.role) if reply.base else []
        if len(found) == len(before) == 1:
            earlier, later = (whole(record.by_id, k) for k in before + found)
            assert later[: len(earlier)] == earlier, (before, found)
    assert not got & record.undelivered
    lost = defaultdict(list)
    for call in record.by_id.values():
        if call.retry_of is not None:
            earlier = record.by_id[call.retry_of]
            assert (earlier.delivered, earlier.place, earlier.role) == (False, call.place, call.role)
        if call.delivered and call.call_id not in maybe:
            lost[call.place, call.role].append(call.call_id)
            assert past.processes or call.call_id in record.undelivered
    assert all(len(calls) == 1 for calls in lost.values()), lost


def _check_engine(record: Record, attempts, past: Past) -> None:
    """Whatever the engine was asked in vain or not, is what the log says; and the other way round.

    But for calls that were given up while they waited for a place at an engine: none was asked.
    """
    calls = [whole(record.by_id, k) for k in record.by_id]
    asked = {tuple(a.ids) for a in attempts}
    for call, ids in zip(record.by_id.values(), calls, strict=True):
        never = (call.finish_reason, call.n_output, call.delivered) == ("abort", 0, False)
        assert never or tuple(ids[: len(ids) - call.n_output]) in asked
    recorded = {tuple(ids) for ids in calls}
    for attempt in attempts:
        if attempt.finish in ("stop", "length") and attempt.process not in past.processes:
            assert tuple(attempt.ids + attempt.output) in recorded


def _check_experts(record: Record, blobs: Blobs | None) -> None:
    """A call that brought some has, with what came before it, the row of every token that it read."""
    for call_id, call in record.by_id.items():
        if call.experts:
            assert blobs is not None
            path = path_to(record.by_id.values(), call_id)
            rows = along([(until, fetch(blobs, c.experts) if c.experts else None) for until, c in path])
            assert (rows == routed(whole(record.by_id, call_id))).all()
        else:
            assert blobs is None or call.finish_reason == "abort" or call.role not in ev.TRAINED_ROLES


def _check(pasts: list[Past], log, renderer: Renderer) -> None:
    calls, undelivered, tools = defaultdict(list), defaultdict(set), defaultdict(list)
    for event in read_events(log, "calls"):
        calls[event.execution_id].append(event)
    for event in read_events(log, "executions"):
        if isinstance(event, ev.ReplyUndelivered):
            undelivered[event.execution_id].add(event.call_id)
    for event in read_events(log, "tools"):
        tools[event.execution_id].append(event)
    for past in pasts:
        for execution in past.executions:
            assert len(calls[execution]) == past.counts[execution], past.seed
            record = Record(renderer, calls[execution], undelivered[execution])
            replies = [r for r in past.replies if r.execution == execution]
            attempts = [a for a in past.engine.attempts if a.execution == execution]
            try:
                _check_execution(record, replies, past)
                _check_engine(record, attempts, past)
                _check_experts(record, past.experts)
            except BaseException as error:
                error.add_note(f"scenario {past.seed}, execution {execution}")
                raise
            for attempt in attempts:
                text = renderer.decode(np.array(attempt.ids))
                assert not any(f"{other}." in text for other in past.executions if other != execution)
            for tool in tools[execution]:
                assert f"in {execution}." in tool.result.decode()
            ids = [t.tool_call_id for t in tools[execution]]
            assert len(set(ids)) == len(ids)


def _ending(pasts: list[Past]) -> list[ev.Event]:
    found: list[ev.Event] = []
    for past in pasts:
        for k, execution in enumerate(past.executions):
            names = {"group_id": group_of(execution), "execution_id": execution}
            found.append(
                ev.ExecutionFinished(
                    time_us=now_us(), status="completed", calls=past.counts[execution], **names
                )
            )
            found.append(
                ev.ExecutionScored(
                    time_us=now_us(), assessment="scored", value=float(k), evaluator="t", **names
                )
            )
    return found


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens(batch: int, renderer: Renderer, tmp_path: Path) -> None:
    pasts: list[Past] = []
    with closing(open_log(f"sqlite://{tmp_path / 'log.db'}?partitions=3")) as log:
        for seed in range(SCENARIOS * batch, SCENARIOS * (batch + 1)):
            rng = Random(seed)
            try:
                simulate(_scenario(seed, rng, log, renderer, pasts), rng)
            except BaseException as error:
                error.add_note(f"scenario {seed}")
                raise
            log.append(_ending(pasts[-1:]))
        _check(pasts, log, renderer)
        store = fresh_lake(log, tmp_path / "lake", lambda _sentence: None)
        derive_set(store, Admission(), "default", [f"s{p.seed}" for p in pasts], lambda _sentence: None)
    with closing(open_lake(tmp_path / "lake")) as lake:
        assert {name: t.to_pylist() for name, t in lake.audit().items() if t.num_rows} == {}
        assert lake.rows("select count(*) n from calls")[0]["n"] == sum(
            n for p in pasts for n in p.counts.values()
        )
