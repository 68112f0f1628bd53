"""What an engine says of itself: load, counters, model, options.  Embedded engine and real SGLang."""

from __future__ import annotations

import asyncio

import pytest

from ingest.engines.model import model_facts
from tests.support.contract_engine import CONTEXT, asked, busy, prompt


async def test_an_idle_engine(engine, http, client):
    (load,) = await client.loads()
    assert (load.rank, load.running, load.waiting) == (0, 0, 0)
    assert load.running_max >= 1
    assert load.total_tokens >= CONTEXT
    info = await client.model_info()
    assert info.model_path == str(engine.model)
    assert model_facts(info.model_path).vocab_size == engine.vocab
    server = await client.server_info()
    assert server.max_running_requests == load.running_max
    assert server.context_length == CONTEXT
    for path in ("/get_model_info", "/get_server_info", "/health", "/health_generate"):
        async with http.get(path) as answer:
            assert answer.status == 200


async def test_a_busy_engine(client):
    (idle,) = await client.loads()
    more = idle.running_max + 4
    calls = [asyncio.create_task(client.generate(prompt(20, i), **asked(600))) for i in range(more)]
    await busy(client, idle.running_max)
    (load,) = await client.loads()
    assert (load.running, load.waiting) == (idle.running_max, 4)
    assert load.used_tokens > 0
    assert 0 < load.token_usage <= 1
    await client.pause("abort")
    assert {g.finish_reason for g in await asyncio.gather(*calls)} == {"abort"}


async def test_metrics_count(client):
    """Both have these names; what differs is when the gauges are written (see ingest.engines.figures)."""
    await client.flush()
    first = await client.metrics()
    ids = prompt(100, 3)
    for _ in range(2):
        await client.generate(ids, **asked(5))
    async with asyncio.timeout(30):
        while (last := await client.metrics()).calls < first.calls + 2:
            await asyncio.sleep(0.05)
    assert last.prompt_tokens - first.prompt_tokens == 200
    assert last.cached_tokens - first.cached_tokens == 99
    assert last.sampled_tokens - first.sampled_tokens == 10
    for gauge in (last.running, last.queued, last.paused, last.retracted, last.throughput):
        assert gauge >= 0
    for share in (last.token_usage, last.cache_hit_rate):
        assert 0 <= share <= 1


@pytest.mark.parametrize("again", [1, 2])
async def test_metrics_of_aborted_calls(client, again):
    before = (await client.metrics()).aborted
    wanted = asked(1900)
    call = asyncio.create_task(client.generate(prompt(20, again), **wanted))
    await busy(client, 1)
    await client.abort(wanted["rid"])
    await call
    async with asyncio.timeout(30):
        while (await client.metrics()).aborted < before + 1:
            await asyncio.sleep(0.05)
