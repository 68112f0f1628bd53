"""Routed experts: a real SGLang with a tiny Qwen3-MoE.  The embedded engine has no such model.

A server of its own, since only one that is started so tells its routing: all tests that need it are here.
It is ours, or the one at HEADRACE_TEST_SGLANG_EXPERTS=URL,MODEL.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ingest.engines.client import EngineClient, EngineRefused
from ingest.engines.model import Experts, model_facts
from ingest.engines.parts import joined
from ingest.rederive import fresh_lake
from lake.blobs import Blobs
from lake.experts import along, fetch, path_to
from lake.log import open_log
from lake.query import open_lake
from tests.support import sglang
from tests.support.contract_engine import asked, busy, prompt
from tests.support.driven_execution import user, whole
from tests.support.running_proxy import LIMITS, running_proxy

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    named = os.environ.get("HEADRACE_TEST_SGLANG_EXPERTS")
    if named:
        yield sglang.named(f"{named},")
        return
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


async def test_a_tree_of_calls_is_kept_once_and_read_by_its_references(server, client, tmp_path):
    facts = model_facts(server.model)
    limits = replace(LIMITS, context_tokens=2000, new_tokens_max=12, experts=facts.experts.count)
    blobs = Blobs(str(tmp_path / "blobs"))
    with closing(open_log(f"sqlite://{tmp_path}/log.db", blobs)) as log:
        async with running_proxy(log, server.model, client, limits) as running:
            messages = []
            for turn in ("one", "two", "three"):
                messages.append(user(turn))
                status, body = await running.answer(messages)
                assert status == 200, body
                messages.append(body["choices"][0]["message"])
            status, body = await running.answer([*messages[:2], user("other")])
            assert status == 200, body
            calls = running.calls()
        lake = open_lake(fresh_lake(log, tmp_path / "lake", lambda _: None).root)
    stored = {
        r["call_id"]: r["experts"] for r in lake.rows("select call_id, experts from calls order by call_id")
    }
    assert stored == {k: c.experts for k, c in calls.items()}
    kept = 0
    async with EngineClient(server.url) as engine:  # the proxy closed the other
        for call_id in calls:
            path = [(until, fetch(blobs, c.experts)) for until, c in path_to(calls.values(), call_id)]
            rows = along(path)
            kept += len(path[-1][1].rows)
            known = np.array(whole(calls, call_id)[:-1], np.int32)
            again = await engine.generate(known, **asked(1), routed_experts=True)
            assert rows.shape == again.experts.shape
            assert (rows == again.experts).mean() > 0.98  # decoded one by one, and prefilled: a tie may turn
    unique = sum(c.n_context + c.n_output for c in calls.values())
    assert unique - len(calls) <= kept <= unique
    report = lake.rows("from experts")[0]
    assert (report["calls"], report["with_experts"], report["tokens"]) == (4, 4, unique)
    assert report["bytes"] == sum(int(reference.split(":")[1]) for reference in stored.values())
