"""A real prefill and a real decode server as one engine: what one server says; and either of them killed."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from ingest.engines.answer import EngineRefused, EngineUnavailable
from ingest.engines.client import EngineClient, new_rid
from ingest.engines.connecting import connect
from ingest.engines.prefill_decode import PrefillDecode
from tests.support.prefill_decode import prefill_and
from tests.support.sglang import CALLS_MAX

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
VOCAB, PROMPT = 388, 96


@pytest.fixture(scope="module")
def servers(sglang_server, tmp_path_factory):
    with prefill_and(1, tmp_path_factory.mktemp("pd"), sglang_server.model) as ((address,), both):
        yield address, both


@pytest.fixture
async def cell(servers):
    cell = connect(servers[0], vocab_size=VOCAB)
    yield cell
    await cell.close()


def words(seed: int, n: int = PROMPT):
    return np.random.default_rng(seed).integers(2, VOCAB, n).astype(np.int32)


async def ask(engine, ids, n=16, rid="", temperature=1e-4):
    return await engine.generate(
        ids, rid=rid or new_rid(), new_tokens_max=n, temperature=temperature, timeout_s=120
    )


async def test_two_servers_say_what_one_says_and_keep_the_prefix(cell, sglang_server):
    async with EngineClient(sglang_server.url, vocab_size=VOCAB) as single:
        for seed in range(3):
            one, two = await ask(single, words(seed)), await ask(cell, words(seed))
            assert one.output_ids.tolist() == two.output_ids.tolist()
            np.testing.assert_allclose(one.output_logprobs, two.output_logprobs, atol=1e-3)
            assert (two.finish_reason, two.engine) == ("length", cell.url)
    assert (await ask(cell, words(0))).cached_tokens == PROMPT - 1
    assert (await cell.standing(), (await cell.loads())[0].running_max) == ("ready", CALLS_MAX)


async def test_an_abort_ends_both_whenever_it_comes(cell):
    for wait_s in (0.0, 0.05, 1.0):
        rid = new_rid()
        call = asyncio.create_task(ask(cell, words(10 + int(wait_s * 100)), 1500, rid, 1.0))
        await asyncio.sleep(wait_s)
        async with asyncio.timeout(60):
            while not call.done():  # one may overtake its call
                await cell.abort(rid)
                await asyncio.wait({call}, timeout=0.5)
        assert (await call).finish_reason == "abort"
    assert (await ask(cell, words(0))).finish_reason == "length"


async def test_servers_of_another_mode_and_experts_are_refused(servers, cell):
    address, _ = servers
    turned = PrefillDecode(EngineClient(address.url), EngineClient(address.prefill))
    with pytest.raises(EngineRefused, match="has the disaggregation mode decode, prefill is needed"):
        await ask(turned, words(0))
    await turned.close()
    with pytest.raises(EngineRefused, match=r"proxy\.routed_experts"):
        await cell.generate(
            words(0), rid=new_rid(), new_tokens_max=1, temperature=1.0, timeout_s=60, routed_experts=True
        )


@pytest.mark.parametrize("place", [1, 0], ids=["decode", "prefill"])
async def test_where_one_dies_the_call_fails_at_once_and_goes_on_when_it_is_back(servers, cell, place):
    one = servers[1][place]
    call = asyncio.create_task(ask(cell, words(7), 1500, temperature=1.0))
    await asyncio.sleep(1.0)
    one.control("kill")
    began = time.monotonic()
    if place:
        with pytest.raises(EngineUnavailable):
            await call
    else:  # the prompt is over there: the decode server has all it needs
        assert (await call).finish_reason == "length"
    with pytest.raises(EngineUnavailable):
        await ask(cell, words(8))
    assert time.monotonic() - began < 100  # no time-out of SGLang's is waited for: they are of 300 s
    assert await cell.standing() == "silent"
    one.start()
    assert await cell.standing() == "ready"
    assert (await ask(cell, words(8))).finish_reason == "length"
