"""Several real engines behind one pool: sticky, elsewhere after a failure, given up where one hangs."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tokenizers import Tokenizer

from ingest.engines.cells import Health, PoolLimits
from ingest.engines.client import EngineClient, EngineUnavailable, new_rid
from ingest.engines.pool import EnginePool
from lake.metrics import REGISTRY
from tests.support.running_proxy import until
from tests.support.scripted_engine import POINTS, Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder

LIMITS = PoolLimits(probe_s=0.02, silent_s_max=0.1, pause_s_min=0.1, pause_s_max=0.2)


class Engines:
    """Two scripted engines and a pool over them; `says[k]` is what engine k answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.says = [Say("from 0"), Say("from 1")]
        self.engines = [ScriptedEngine(tokenizer, lambda _, k=k: self.says[k]) for k in range(2)]

    def health(self, k: int) -> Health:
        return self.pool.members[self.engines[k].url].health

    async def ask(self, affinity: str = "", rid: str = ""):
        ids = np.array([1, 2, 3], np.int32)
        return await self.pool.generate(
            ids, rid=rid or new_rid(), affinity=affinity, new_tokens_max=9, temperature=1.0, timeout_s=30
        )

    async def until_ok(self, affinity: str = ""):
        async with asyncio.timeout(20):
            while True:
                try:
                    return await self.ask(affinity)
                except EngineUnavailable:
                    await asyncio.sleep(0.01)


@pytest.fixture
async def two(tmp_path, monkeypatch):
    monkeypatch.setattr("ingest.engines.client.PROBE_TIMEOUT_S", 1.5)  # a busy machine is not silent
    model = write_model_folder(tmp_path / "m")
    two = Engines(Tokenizer.from_file(str(model / "tokenizer.json")))
    async with two.engines[0], two.engines[1]:
        two.pool = EnginePool([EngineClient(engine.url) for engine in two.engines], LIMITS)
        yield two
        await two.pool.close()


async def test_an_execution_stays_and_others_are_shared_out(two):
    for says in two.says:
        says.hold = asyncio.Event()
    calls = [asyncio.create_task(two.ask(f"e-{k}")) for k in range(6)]
    await until(lambda: [len(e.asked) for e in two.engines] == [3, 3])
    for says in two.says:
        says.hold.set()
    first = [g.engine for g in await asyncio.gather(*calls)]
    assert [(await two.ask(f"e-{k}")).engine for k in range(6)] == first


def failures_at(url: str) -> float:
    return REGISTRY.get_sample_value("headrace_proxy_engine_failures_total", {"engine": url}) or 0.0


@pytest.mark.parametrize("fault", ["500", "drop", *POINTS])
async def test_after_a_failure_elsewhere(two, fault):
    home = (await two.ask("e")).engine
    k = [engine.url for engine in two.engines].index(home)
    two.says[k].fault = fault
    failures = failures_at(home)
    with pytest.raises(EngineUnavailable):
        await two.ask("e")
    assert (await two.ask("e")).engine == two.engines[1 - k].url
    assert len(two.engines[k].asked) == 2
    assert failures_at(home) == failures + 1


@pytest.mark.parametrize("status", [503, 0])
async def test_one_that_drains_or_is_silent_gets_no_new_calls(two, status):
    await two.ask("e")
    two.engines[0].ready = status
    await until(lambda: two.health(0).said == ("paused" if status else "silent"))
    for k in range(5):
        assert (await two.ask(f"e-{k}")).engine == two.engines[1].url
    two.engines[1].ready = status
    await until(lambda: two.health(1).said == ("paused" if status else "silent"))
    if status:  # it holds the call, which is better than none
        await two.ask("e")
    else:
        with pytest.raises(EngineUnavailable, match=r"no engine takes calls: .* is silent; .* is silent"):
            await two.ask("e")
    two.engines[0].ready = 200
    assert (await two.until_ok("e")).engine == two.engines[0].url


async def test_a_call_on_an_engine_that_hangs_is_given_up(two):
    two.says[0].fault = two.says[1].fault = "hang"
    calls = [asyncio.create_task(two.ask()) for _ in range(4)]
    await until(lambda: [len(e.asked) for e in two.engines] == [2, 2])
    two.engines[0].ready = 0
    await until(lambda: sum(c.done() for c in calls) == 2)
    failed = [c.exception() for c in calls if c.done()]
    assert all("has been silent for too long" in str(error) for error in failed)
    assert [two.health(k).running for k in (0, 1)] == [0, 2]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert two.health(1).running == 0


async def test_an_abort_finds_its_engine_and_only_an_unasked_one_counts(two):
    two.says[0].hold = two.says[1].hold = asyncio.Event()
    rids = [new_rid() for _ in range(2)]
    calls = [asyncio.create_task(two.ask(rid=rid)) for rid in rids]
    await until(lambda: all(e.asked for e in two.engines))
    await two.pool.abort(rids[1])
    assert (await calls[1]).finish_reason == "abort"
    assert not calls[0].done()
    two.says[0].fault = "abort"
    two.says[0].hold.set()
    assert (await calls[0]).finish_reason == "abort"
    await two.pool.abort(rids[0])  # it runs nowhere: no error
    two.says[0].fault = ""
    assert (await two.ask()).finish_reason == "stop"


async def test_one_that_comes_back_is_used_again(two):
    await two.ask("e")
    await two.engines[0].__aexit__()
    for k in range(3):
        assert (await two.until_ok(f"e-{k}")).engine == two.engines[1].url
    await two.engines[0].__aenter__()
    async with asyncio.timeout(20):
        while (await two.until_ok()).engine != two.engines[0].url:
            await asyncio.sleep(0.01)
