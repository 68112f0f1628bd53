"""Real engines behind one pool that are full, leave, come back; and the proxy that is told so over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
from tokenizers import Tokenizer

from ingest.engines.answer import EngineBusy
from ingest.engines.cells import PoolLimits
from ingest.engines.client import EngineClient, new_rid
from ingest.engines.connecting import connect
from ingest.engines.draining import UnknownEngine, drain, remove, undrain
from ingest.engines.pool import EnginePool
from ingest.identity import control_key, sign
from tests.integration.test_engine_pool import Engines
from tests.support.driven_execution import user
from tests.support.engines import embedded_engine
from tests.support.random_model import make_tiny_model
from tests.support.running_proxy import SECRET, running_proxy, until
from tests.support.scripted_engine import Say, ScriptedEngine

LIMITS = PoolLimits(probe_s=0.05, abort_s_max=2.0, abort_again_s=0.2, reserve_s=0.5)


@pytest.fixture
async def pool(engines, monkeypatch):
    monkeypatch.setattr("ingest.engines.client.PROBE_TIMEOUT_S", 5.0)  # a busy machine is not silent
    urls = [engine.url for engine in engines.engines]
    engines.pool = EnginePool([EngineClient(u) for u in urls], LIMITS, dict.fromkeys(urls, 2))
    yield engines.pool
    await engines.pool.close()


@pytest.fixture
def tokenizer(model):
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture
async def engines(tokenizer):
    two = Engines(tokenizer)
    async with two.engines[0], two.engines[1]:
        yield two


def held(engines) -> asyncio.Event:
    event = asyncio.Event()
    for says in engines.says:
        says.hold = event
    return event


async def test_so_many_calls_an_engine_and_the_others_wait(engines, pool):
    go_on = held(engines)
    calls = [asyncio.create_task(engines.ask(f"e-{k}")) for k in range(7)]
    await until(lambda: [len(e.asked) for e in engines.engines] == [2, 2])
    assert pool.waiting == 3
    assert all(health.full for health in pool.healths.values())
    go_on.set()
    assert {g.finish_reason for g in await asyncio.gather(*calls)} == {"stop"}
    assert (pool.waiting, [h.running for h in pool.healths.values()]) == (0, [0, 0])


async def test_an_engine_says_itself_how_many_it_takes(tmp_path):
    with embedded_engine(make_tiny_model(tmp_path / "m"), "--concurrent-calls", "3") as running:
        pool = EnginePool([EngineClient(running.url)], LIMITS)
        ids = np.array([1, 2, 3], np.int32)
        await pool.generate(ids, rid=new_rid(), new_tokens_max=1, temperature=1.0, timeout_s=60)
        await until(lambda: pool.healths[running.url].capacity == 3)
        await pool.close()


async def test_a_call_waits_no_longer_than_it_may_and_an_abort_ends_its_wait(engines, pool, monkeypatch):
    monkeypatch.setattr(pool, "limits", PoolLimits(wait_s_max=0.3))
    go_on = held(engines)
    first = [asyncio.create_task(engines.ask()) for _ in range(4)]
    await until(lambda: sum(len(e.asked) for e in engines.engines) == 4)
    with pytest.raises(EngineBusy, match=r"no place at an engine for 0.3 s .*2 of 2.*raise their capacity"):
        await engines.ask()
    monkeypatch.setattr(pool, "limits", LIMITS)
    waiting = asyncio.create_task(engines.ask(rid="f" * 32))
    await until(lambda: pool.waiting == 1)
    await pool.abort("f" * 32)
    answer = await waiting
    assert (answer.finish_reason, len(answer.output_ids)) == ("abort", 0)
    assert pool.waiting == 0
    go_on.set()
    await asyncio.gather(*first)


async def test_a_place_given_to_one_who_leaves_in_that_moment_is_free(engines, pool):
    go_on = held(engines)
    first = [asyncio.create_task(engines.ask()) for _ in range(4)]
    await until(lambda: sum(len(e.asked) for e in engines.engines) == 4)
    waiting = asyncio.create_task(engines.ask("e"))
    await until(lambda: pool.waiting == 1)
    pool.healths[engines.engines[0].url].capacity = 3
    pool.hand_out()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert [health.running for health in pool.healths.values()] == [2, 2]
    go_on.set()
    await asyncio.gather(*first)


async def test_calls_of_one_that_leaves_end_and_a_place_is_held_for_them(engines, pool):
    held(engines)
    urls = [engine.url for engine in engines.engines]
    await drain(pool, urls[1])
    calls = [asyncio.create_task(engines.ask(f"e-{k}")) for k in range(2)]
    await until(lambda: len(engines.engines[0].asked) == 2)
    undrain(pool, urls[1])
    drained = await drain(pool, urls[0], to=[urls[1]])
    assert (drained.finished, drained.moved, drained.left) == (0, 2, 0)
    assert [c.finish_reason for c in await asyncio.gather(*calls)] == ["abort", "abort"]
    assert pool.healths[urls[1]].reserved == 2
    stranger = asyncio.create_task(engines.ask("e-9"))  # the places are not for it
    await until(lambda: pool.waiting == 1)
    engines.says[1].hold = None
    for k in range(2):
        assert (await engines.ask(f"e-{k}")).engine == urls[1]
    assert (await stranger).engine == urls[1]
    assert pool.healths[urls[1]].reserved == 0
    undrain(pool, urls[0])
    assert (await engines.ask("e-0")).engine == urls[1]  # its prefixes lie there now


async def test_a_place_that_nobody_comes_for_is_free_again(engines, pool):
    held(engines)
    urls = [engine.url for engine in engines.engines]
    call = asyncio.create_task(engines.ask("e"))
    await until(lambda: any(e.asked for e in engines.engines))
    here, there = urls if engines.engines[0].asked else urls[::-1]
    await drain(pool, here)
    await call
    assert pool.healths[there].reserved == 1
    await until(lambda: pool.healths[there].reserved == 0)


async def test_calls_may_end_where_they_are_and_one_that_ignores_aborts_is_cut(engines, pool):
    go_on = held(engines)
    call = asyncio.create_task(engines.ask("e"))
    await until(lambda: any(e.asked for e in engines.engines))
    k = 0 if engines.engines[0].asked else 1
    draining = asyncio.create_task(drain(pool, engines.engines[k].url, finish_s=30))
    await until(lambda: pool.healths[engines.engines[k].url].to is not None)
    go_on.set()
    assert (await draining)[:3] == (1, 0, 0)
    assert (await call).finish_reason == "stop"
    undrain(pool, engines.engines[k].url)
    engines.says[k] = Say(fault="hang")
    call = asyncio.create_task(engines.ask("e"))
    await until(lambda: len(engines.engines[k].asked) == 2)
    drained = await drain(pool, engines.engines[k].url)
    assert (drained.moved, drained.left) == (1, 0)
    with pytest.raises(Exception, match="is leaving, and did not give its call back"):
        await call


async def test_engines_come_and_go(engines, pool, tokenizer):
    urls = [engine.url for engine in engines.engines]
    with pytest.raises(UnknownEngine, match="no engine http://x:1 here; there are"):
        await drain(pool, "http://x:1")
    with pytest.raises(UnknownEngine, match="cannot be where its calls go"):
        await drain(pool, urls[0], to=[urls[0]])
    async with ScriptedEngine(tokenizer, lambda _: Say("from 2")) as third:
        pool.add(EngineClient(third.url))
        with pytest.raises(ValueError, match="is here already"):
            pool.add(EngineClient(third.url))
        for url in urls:
            await remove(pool, url)
        assert list(pool.members) == [third.url]
        assert (await engines.ask("e")).engine == third.url
        with pytest.raises(ValueError, match="the only engine"):
            await remove(pool, third.url)


# ------------------------------------------------------------------------------ over HTTP
async def control(proxy, path, key=None, method="POST", **body):
    headers = {"Authorization": f"Bearer {control_key(SECRET) if key is None else key}"}
    sent = {"json": body} if method == "POST" else {}
    async with proxy.session.request(method, f"{proxy.url}/engines{path}", headers=headers, **sent) as reply:
        return reply.status, await reply.json()


async def test_a_harness_sees_one_slow_call_while_its_engine_leaves(engines, pool, log, model):
    held(engines)
    engines.says[0].partial = 2
    urls = [engine.url for engine in engines.engines]
    async with running_proxy(log, model, pool, connect=partial(connect, vocab_size=None)) as proxy:
        await control(proxy, "/drain", engine=urls[1])
        asking = asyncio.create_task(proxy.answer([user("u")]))
        await until(lambda: engines.engines[0].asked)
        await control(proxy, "/undrain", engine=urls[1])
        engines.says[1].hold = None
        status, drained = await control(proxy, "/drain", engine=urls[0], to=[urls[1]])
        assert (status, drained["moved"], drained["left"]) == (200, 1, 0)
        status, reply = await asking
        assert status == 200
        (call,) = proxy.calls().values()
        assert call.n_output == reply["usage"]["completion_tokens"]
        first, second = engines.engines[0].asked[0], engines.engines[1].asked[0]
        assert second.ids == first.ids + first.output_ids  # it goes on from what there was
        assert call.n_output == len(first.output_ids) + len(second.output_ids)
        assert call.engine == ", ".join(urls)
        status, told = await control(proxy, "", method="GET")
        assert [e["state"] for e in told["engines"]] == ["leaving", "ready"]
        assert (told["engines"][1]["capacity"], told["waiting"]) == (2, 0)


async def test_who_may_steer_and_what_is_refused(engines, pool, log, model):
    urls = [engine.url for engine in engines.engines]
    async with running_proxy(log, model, pool, connect=partial(connect, vocab_size=None)) as proxy:
        for key in ("", sign(SECRET, "g-1", "e-1"), "hc-" + "A" * 43):
            assert (await control(proxy, "/drain", key=key, engine=urls[0]))[0] == 401
            assert (await control(proxy, "", key=key, method="GET"))[0] == 401
        assert pool.healths[urls[0]].to is None
        for path, body, why in [
            ("/drain", {"engine": "http://x:1"}, "no engine http://x:1 here"),
            ("/drain", {"engine": urls[0], "finish_s": -1}, "finish_s is -1, 0 to"),
            ("/drain", {"engine": urls[0], "when": "now"}, "unknown field"),
            ("/undrain", {}, "missing required field"),
            ("/add", {"engine": "x"}, "is no URL"),
            ("/add", {"engine": urls[0]}, "is here already"),
            ("/add", {"engine": "http://x:1", "to": ["y" * (1 << 17)]}, "the most there may be"),
        ]:
            status, told = await control(proxy, path, **body)
            assert status == 400
            assert why in told["error"]
        assert (await control(proxy, "/add", engine="http://127.0.0.1:9#capacity=3"))[0] == 200
        assert pool.healths["http://127.0.0.1:9"].capacity == 3
        assert (await control(proxy, "/remove", engine="http://127.0.0.1:9"))[0] == 200
        assert list(pool.members) == urls
