"""Routed experts through the proxy: asked for from where they are new, in the blobs before they are named."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import msgspec
import pyarrow.compute as pc
import pytest
from tokenizers import Tokenizer

from ingest.engines.client import EngineClient
from ingest.proxy.__main__ import _experts
from ingest.proxy.app import make_app
from ingest.rederive import fresh_lake
from lake import config as configs
from lake import experts
from lake.blobs import Blobs
from lake.experts import along, fetch, path_to
from lake.layout import Run
from lake.log import open_log
from lake.query import open_lake
from lake.rows import to_events
from tests.integration.test_proxy_restart import launch
from tests.support.driven_execution import user, whole
from tests.support.routing import EXPERTS, routed
from tests.support.running_proxy import LIMITS, running_proxy
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder

KEEPING = replace(LIMITS, experts=EXPERTS.count, log_wait_s_max=20.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def log(tmp_path):
    log = open_log(f"sqlite://{tmp_path}/log.db?partitions=3", Blobs(str(tmp_path / "blobs")))
    yield log
    log.close()


@pytest.fixture
def says():
    return []


@pytest.fixture
async def engine(model, says):
    """A mixture of experts by its word: each answer that is no error has the rows that were asked for."""

    def tell(answer):
        body = engine.asked[-1].body
        if body.get("return_routed_experts"):
            rows = routed(body["input_ids"] + answer["output_ids"])[body["routed_experts_start_len"] :]
            answer["meta_info"]["routed_experts"] = base64.b64encode(rows.astype("<i4").tobytes()).decode()

    def say(_):
        return says.pop(0) if says else Say("yes", change=tell)

    async with ScriptedEngine(Tokenizer.from_file(str(model / "tokenizer.json")), say) as engine:
        engine.tell = tell
        yield engine


def proxy(log, model, engine, limits=KEEPING):
    return running_proxy(log, model, EngineClient(engine.url, experts=EXPERTS), limits)


def starts(engine):
    return [a.body.get("routed_experts_start_len") for a in engine.asked]


async def said(running, messages, **how):
    status, body = await running.answer(messages, **how)
    assert status == 200, body
    return body["choices"][0]["message"]


def check(log, running, aside=()):
    """Every call's experts, put together along its path, are those of its whole sequence."""
    calls = running.calls()
    for call_id in calls.keys() - {*aside}:
        path = path_to(calls.values(), call_id)
        rows = along([(until, fetch(log.blobs, c.experts) if c.experts else None) for until, c in path])
        assert rows.tolist() == routed(whole(calls, call_id)).tolist()
    return calls


async def test_each_token_of_a_tree_is_asked_for_and_kept_once(log, model, engine):
    async with proxy(log, model, engine) as running:
        first = [user("one"), await said(running, [user("one")])]
        second = [*first, user("two"), await said(running, [*first, user("two")])]
        await said(running, [*second, user("three")])
        await said(running, [*first, user("other")])  # a branch
        async with running.ask([*second, user("title")], role="auxiliary") as reply:
            assert reply.status == 200
        await said(running, [*second, user("four")])
        calls = check(log, running, aside=(4,))
    assert calls[4].experts == ""  # it is never trained
    assert starts(engine)[4] is None
    length = {k: len(whole(calls, k)) for k in calls}
    known = [0, *(min(c.shared_len, length[c.parent_call_id] - 1) for c in (calls[1], calls[2], calls[3]))]
    assert starts(engine)[:4] == known
    assert (
        length[1] <= starts(engine)[5] <= calls[5].shared_len
    )  # what only the auxiliary call had, it brings
    assert all(a < b for a, b in pairwise(starts(engine)[:3]))
    pieces = [fetch(log.blobs, c.experts) for c in calls.values() if c.experts]
    assert [p.start for p in pieces] == [s for s in starts(engine) if s is not None]


async def test_the_documented_way_from_sql_to_arrays(model, engine, tmp_path):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(configs.Config()))
    with closing(run.open_log()) as log:
        async with proxy(log, model, engine) as running:
            answer = await said(running, [user("one")])
            await said(running, [user("one"), answer, user("two")])
            calls = running.calls()
        fresh_lake(log, Path(run.lake), lambda _sentence: None)
    lines = re.search(r"for all calls of an execution:\n\n(.+?)\n\n", experts.__doc__, re.S)[1]
    code = dedent(lines).replace("runs/moe", str(run.path))
    names = vars(experts) | {"Run": Run, "Path": Path, "Blobs": Blobs, "open_lake": open_lake, "pc": pc}
    names |= {"to_events": to_events, "name": "e-1", "call_id": 1}
    exec(code, names)
    assert names["rows"].tolist() == routed(whole(calls, 1)).tolist()


async def test_a_call_that_an_engine_ended_too_early_brings_the_rows_of_both_attempts(
    log, model, engine, says
):
    async with proxy(log, model, engine) as running:
        says += [Say("half an answer", fault="abort", partial=3, change=engine.tell)]
        await said(running, [user("one")])
        calls = check(log, running)
    sent, again = (len(a.ids) for a in engine.asked)
    assert starts(engine) == [0, again - 1]
    assert again == sent + 3
    assert len(calls) == 1


async def test_a_proxy_that_is_started_again_knows_what_is_kept(log, model, engine):
    launch(log, ("g-1", "e-1"))
    async with proxy(log, model, engine) as running:
        answer = await said(running, [user("one")])
    async with proxy(log, model, engine) as running:
        await said(running, [user("one"), answer, user("two")])
        calls = check(log, running)
    assert starts(engine) == [0, len(whole(calls, 0)) - 1]


async def test_a_store_that_is_away_is_waited_for_and_nothing_is_named_before_it_lies_there(
    log, model, engine, tmp_path
):
    blobs = tmp_path / "blobs"
    async with proxy(log, model, engine) as running:
        away = shutil.move(blobs, tmp_path / "away")
        asking = asyncio.create_task(said(running, [user("one")]))
        while not engine.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert (running.calls(), asking.done()) == ({}, False)
        shutil.move(away, blobs)
        await asking
        check(log, running)
    async with proxy(log, model, engine, replace(KEEPING, log_wait_s_max=0.1)) as running:
        shutil.move(blobs, tmp_path / "away")
        status, body = await running.answer([user("two")], "e-2")
        shutil.move(tmp_path / "away", blobs)
        assert (status, body["error"]["code"]) == (503, "log_unavailable")
        assert "blobs" in body["error"]["message"]
        assert {c.execution_id for c in running.calls().values()} == {"e-1"}


async def test_an_engine_that_does_not_tell_is_refused_with_what_to_do(log, model, engine, says):
    async with proxy(log, model, engine) as running:
        says += [Say("yes")]
        status, body = await running.answer([user("one")])
    assert (status, body["error"]["code"]) == (502, "engine_refused")
    assert "start SGLang with --enable-return-routed-experts" in body["error"]["message"]


async def test_nothing_is_asked_for_where_the_setting_is_off(log, model, engine):
    async with proxy(log, model, engine, LIMITS) as running:
        await said(running, [user("one")])
        assert running.calls()[0].experts == ""
    assert starts(engine) == [None]
    assert "return_routed_experts" not in engine.asked[0].body


def test_a_model_without_experts_and_a_log_without_blobs_are_refused_at_the_edge(model, tmp_path):
    config = configs.override(configs.read("demo"), ["proxy.routed_experts=true"])
    with pytest.raises(ValueError, match=r"config\.json names no experts: .* turn the setting off"):
        _experts(config, Path(model))
    assert _experts(configs.read("demo"), Path(model)) is None
    log = open_log(f"sqlite://{tmp_path}/log.db")
    with pytest.raises(ValueError, match="routed experts lie in blobs, and the log was opened without"):
        make_app(
            log=log, engine=EngineClient("http://127.0.0.1:1"), engine_name="", renderer=None,
            secret=b"", limits=KEEPING,
        )  # fmt: skip
    log.close()
