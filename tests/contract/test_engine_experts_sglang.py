"""Routed experts: a real SGLang with a tiny Qwen3-MoE.  The embedded engine has no such model."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ingest.engines.client import EngineClient, EngineRefused
from ingest.engines.model import Experts, model_facts
from ingest.engines.parts import joined
from tests.support import sglang
from tests.support.contract_engine import asked, busy, prompt

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moe")
    sglang.set_up()
    sglang.make_model("qwen3-moe", folder / "model")
    with sglang.running(folder, "--enable-return-routed-experts", model=folder / "model") as running:
        yield running


@pytest.fixture
async def client(server):
    async with EngineClient(server.url) as client:
        yield client


async def test_each_token_but_the_last_has_its_experts_in_every_layer(server, client):
    facts = model_facts(server.model)
    assert facts.experts == Experts(layers=4, top_k=2, count=8)
    assert (await client.server_info()).enable_return_routed_experts
    ids = prompt(20, 1)
    g = await client.generate(ids, **asked(6), routed_experts=True)
    assert (client.experts, client.vocab_size) == facts[::-1]
    assert (g.experts.dtype, g.experts.shape, g.experts_start) == (np.int16, (25, 4, 2), 0)
    assert (g.experts[..., 0] != g.experts[..., 1]).all()
    assert len(np.unique(g.experts)) == 8  # random weights use them all

    again = np.concatenate([ids, g.output_ids])  # all of it held now, and its rows are there nevertheless
    longer = await client.generate(again, **asked(3), routed_experts=True)
    assert longer.cached_tokens == 25
    np.testing.assert_array_equal(longer.experts[:25], g.experts)
    tail = await client.generate(again, **asked(3), routed_experts=True, experts_start=25)
    assert (tail.experts.shape, tail.experts_start) == ((3, 4, 2), 25)
    assert (await client.generate(ids, **asked(3))).experts is None


async def test_a_call_that_is_gone_on_from_has_the_rows_of_one(client):
    ids, wanted = prompt(30, 2), asked(800)
    call = asyncio.create_task(client.generate(ids, **wanted, routed_experts=True, experts_start=10))
    await busy(client, 1)
    await asyncio.sleep(0.5)
    await client.abort(wanted["rid"])
    first = await call
    assert first.finish_reason == "abort"
    assert len(first.experts) == 30 + len(first.output_ids) - 1 - 10
    known = np.concatenate([ids, first.output_ids])
    second = await client.generate(known, **asked(5), routed_experts=True, experts_start=10)
    whole = joined([first, second])
    assert whole.experts_start == 10
    assert len(whole.experts) == 30 + len(whole.output_ids) - 1 - 10
    np.testing.assert_array_equal(whole.experts[: len(first.experts)], first.experts)
    np.testing.assert_array_equal(whole.experts[len(first.experts) :], second.experts[len(first.experts) :])


async def test_a_shape_that_is_not_the_models_is_refused(server):
    async with EngineClient(server.url, experts=Experts(4, 4, 8)) as client:
        with pytest.raises(EngineRefused, match="rows of 4 layers by 4 experts"):
            await client.generate(prompt(5, 0), **asked(2), routed_experts=True)
    async with EngineClient(server.url, experts=Experts(4, 2, 2)) as client:
        with pytest.raises(EngineRefused, match="the model has 2"):
            await client.generate(prompt(20, 0), **asked(2), routed_experts=True)
