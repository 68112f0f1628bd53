"""Routed experts of a real mixture of experts on a real SGLang server, through the proxy into blobs and SQL.

A server of its own, since only one that is started so tells its routing: ours, or the one at
HEADRACE_TEST_SGLANG_EXPERTS=URL,MODEL.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.engines.client import EngineClient, new_rid
from ingest.engines.model import model_facts
from ingest.rederive import fresh_lake
from lake.blobs import Blobs
from lake.experts import along, fetch, path_to
from lake.log import open_log
from lake.query import open_lake
from tests.support import sglang
from tests.support.driven_execution import user, whole
from tests.support.running_proxy import LIMITS, running_proxy

pytestmark = pytest.mark.sglang

GREEDY = {"temperature": 0.0, "new_tokens_max": 12}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    named = os.environ.get("HEADRACE_TEST_SGLANG_EXPERTS")
    if named:
        yield sglang.named(f"{named},")
        return
    folder = tmp_path_factory.mktemp("sglang-experts")
    sglang.set_up()
    made = [sglang.SCRIPT, "model", "qwen3-moe", folder / "moe"]
    subprocess.run(made, env=os.environ | {"SGLANG_VENV": str(sglang.VENV)}, check=True, timeout=300)
    with sglang.running(folder, "--enable-return-routed-experts", model=folder / "moe") as server:
        yield server


def client(server):
    facts = model_facts(server.model)
    return EngineClient(server.url, vocab_size=facts.vocab_size, experts=facts.experts)


async def generate(engine, ids, **asked):
    return await engine.generate(
        np.array(ids, np.int32), rid=new_rid(), timeout_s=300.0, routed_experts=True, **GREEDY | asked
    )


async def test_rows_are_those_of_a_call_that_asks_for_all(server):
    async with client(server) as engine:
        ids = list(range(300, 340))
        first = await generate(engine, ids)
        layers, top_k = engine.experts.layers, engine.experts.top_k
        assert first.experts.shape == (len(ids) + len(first.output_ids) - 1, layers, top_k)
        history = [*ids, *first.output_ids.tolist(), 77, 78, 79]
        whole = await generate(engine, history)
        later = await generate(engine, history, experts_start=len(first.experts))
        assert (whole.experts[: len(first.experts)] == first.experts).all()
        assert later.output_ids.tolist() == whole.output_ids.tolist()
        assert (later.experts == whole.experts[len(first.experts) :]).all()
        assert (whole.experts[:, :, 0] != whole.experts[:, :, 1]).all()
        at_the_end = await generate(engine, history, experts_start=len(history))
        assert len(at_the_end.experts) == len(at_the_end.output_ids) - 1


async def test_a_tree_of_calls_is_kept_once_and_read_by_its_references(server, tmp_path: Path):
    facts = model_facts(server.model)
    limits = replace(LIMITS, context_tokens=2000, new_tokens_max=12, experts=facts.experts.count)
    blobs = Blobs(str(tmp_path / "blobs"))
    with closing(open_log(f"sqlite://{tmp_path}/log.db", blobs)) as log:
        async with running_proxy(log, server.model, client(server), limits) as running:
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
    async with client(server) as engine:
        for call_id in calls:
            path = [(until, fetch(blobs, c.experts)) for until, c in path_to(calls.values(), call_id)]
            rows = along(path)
            kept += len(path[-1][1].rows)
            again = await generate(engine, whole(calls, call_id)[:-1], new_tokens_max=1)
            assert len(rows) == len(again.experts)
            assert (rows == again.experts).mean() > 0.98  # decoded one by one, and prefilled: a tie may turn
    unique = sum(c.n_context + c.n_output for c in calls.values())
    assert unique - len(calls) <= kept <= unique
    report = lake.rows("from experts")[0]
    assert (report["calls"], report["with_experts"], report["tokens"]) == (4, 4, unique)
    assert report["bytes"] == sum(int(reference.split(":")[1]) for reference in stored.values())
