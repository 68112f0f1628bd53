"""Aborts, pauses, continuing and flushing: embedded engine and real SGLang."""

from __future__ import annotations

import asyncio

import pytest

from ingest.engines.client import EngineRefused, EngineUnavailable, new_rid
from tests.support.contract_engine import asked, body, busy, own, post, prompt, theirs

MODES = ["abort", "retract", "in_place"]


async def test_an_aborted_call_gives_what_it_has(http, client):
    rid = new_rid()
    call = asyncio.create_task(post(http, "/generate", body(20, 1, rid=rid, max_new_tokens=1900)))
    await busy(client, 1)
    await client.abort(rid)
    status, answer = await call
    meta = answer["meta_info"]
    assert status == 200
    assert meta["finish_reason"]["type"] == "abort"
    assert len(answer["output_ids"]) == len(meta["output_token_logprobs"]) < 1900


async def test_an_aborted_call_of_the_client_is_a_generation(client):
    wanted = asked(1900)
    call = asyncio.create_task(client.generate(prompt(20, 1), **wanted))
    await busy(client, 1)
    await client.abort(wanted["rid"])
    g = await call
    assert g.finish_reason == "abort"
    assert len(g.output_ids) == len(g.output_logprobs) < 1900
    assert not g.spans or g.spans[-1].end == len(g.output_ids)
    await client.abort(wanted["rid"])  # it has ended
    await client.abort(new_rid())  # it never was: no error either


async def test_an_abort_of_an_id_that_another_begins_with(http, client, engine):
    """SGLang aborts every call whose id begins so, wherefore the ids of our client are of one length."""
    rids = ["c" * 8, "c" * 9]
    calls = [
        asyncio.create_task(post(http, "/generate", body(20, 1, rid=rid, max_new_tokens=1900)))
        for rid in rids
    ]
    await busy(client, 2)
    await client.abort(rids[0])
    assert (await calls[0])[1]["meta_info"]["finish_reason"]["type"] == "abort"
    if engine.kind == "embedded":
        (load,) = await client.loads()
        assert load.running == 1
        await client.abort(rids[1])
    assert (await calls[1])[1]["meta_info"]["finish_reason"]["type"] == "abort"
    with pytest.raises(ValueError, match="32 are needed"):
        await client.generate(prompt(5, 0), **asked(1) | {"rid": rids[0]})


async def test_a_client_that_hangs_up_ends_its_call(client):
    with pytest.raises(EngineUnavailable, match=r"within 0\.5 s"):
        await client.generate(prompt(20, 1), **asked(1900, timeout_s=0.5))
    await busy(client, 0)


@pytest.mark.parametrize("mode", MODES)
async def test_a_pause_holds_new_calls_until_resumed(http, client, engine, mode):
    running = asyncio.create_task(post(http, "/generate", body(20, 1, max_new_tokens=engine.long)))
    await busy(client, 1)
    await client.pause(mode)
    assert await client.standing() == "paused"
    late = asyncio.create_task(post(http, "/generate", body(20, 2)))
    await asyncio.sleep(0.3)
    assert not late.done()
    assert running.done() == (mode == "abort")
    await client.resume()
    assert await client.ready()
    assert (await late)[1]["meta_info"]["finish_reason"]["type"] == "length"
    meta = (await running)[1]["meta_info"]
    assert meta["finish_reason"]["type"] == ("abort" if mode == "abort" else "length")
    assert meta["num_retractions"] == (mode == "retract")
    if mode != "abort":
        assert meta["completion_tokens"] == engine.long


async def test_what_may_be_said_twice(client):
    """The client says these again where a connection failed: the second time changes nothing."""
    for mode in ("in_place", "in_place", "retract", "abort", "abort"):
        await client.pause(mode)
        assert await client.standing() == "paused"
    for _ in range(2):
        await client.flush()
    for _ in range(2):
        await client.resume()
        assert await client.standing() == "ready"
    assert len((await client.generate(prompt(20, 1), **asked(3))).output_ids)


async def test_a_paused_engine_answers(http, client):
    await client.pause("in_place")
    assert await client.standing() == "paused"
    await client.model_info()
    await client.loads()
    await client.metrics()
    assert (await post(http, "/pause_generation", {"mode": "sleep"}))[0] == 400


@own
async def test_a_paused_engine_is_alive(http, client):
    await client.pause("in_place")
    for path in ("/health", "/health_generate"):
        async with http.get(path) as answer:
            assert answer.status == 200


@theirs
async def test_a_paused_sglang_is_not_asked_for_its_health(http, client):
    """Its `/health` samples a token, which a pause holds: silence for 20 s, then 503.  Our client asks
    `/ready`, which tells a pause from a death at once."""
    await client.pause("in_place")
    asking = asyncio.create_task(http.get("/health"))
    await asyncio.sleep(1.5)  # not paused, it takes one second
    assert not asking.done()
    assert await client.standing() == "paused"
    asking.cancel()


async def test_flush_is_refused_while_calls_run(http, client):
    rid = new_rid()
    call = asyncio.create_task(post(http, "/generate", body(20, 1, rid=rid, max_new_tokens=1900)))
    await busy(client, 1)
    with pytest.raises(EngineRefused, match="Flush"):
        await client.flush(0)
    await client.abort(rid)
    await call
    await client.flush()
    async with http.get("/flush_cache") as answer:
        assert answer.status == 200
