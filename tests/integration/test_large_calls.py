"""Calls and tool results larger than a record, from the harness by way of the proxy into the lake."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from ingest.worker import Worker
from lake.config import Config
from lake.events import ModelCalled, ToolCalled
from lake.layout import Run
from lake.log import Log
from lake.store import Store
from lake.tables import DEAD_LETTERS, SCHEMAS
from lake.wire import RECORD_BYTES_MAX
from tests.support.driven_execution import TOOLS, call_text, result, user, whole
from tests.support.events import cell, tool
from tests.support.running_proxy import LIMITS, Running, read_events, running_proxy
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder

MIB = 1 << 20


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(Config(commit_every_s=0.02)))
    return run


@pytest.fixture
def log(run: Run) -> Iterator[Log]:
    log = run.open_log()
    yield log
    log.close()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    model = write_model_folder(tmp_path / "model")
    says = iter([Say(call_text('{"command": "cat"}')), Say("done")])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    async with ScriptedEngine(tokenizer, lambda _: next(says)) as engine:
        yield engine


@pytest.fixture
async def proxy(log: Log, engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Running]:
    limits = replace(LIMITS, context_tokens=20_000_000)
    async with running_proxy(log, tmp_path / "model", engine.url, limits) as proxy:
        yield proxy


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp, of the test's client
async def test_a_large_prompt_and_a_large_result_are_recorded_whole(
    proxy: Running, engine: ScriptedEngine, log: Log, run: Run
) -> None:
    """A result of 1.5 MiB is a prompt of several MiB of ids; both lie in blobs and come into the lake."""
    text = "all work and no play\n" * (3 * MIB // 2 // 21 + 1)
    status, body = await proxy.answer([user("u")], tools=TOOLS)
    assert status == 200
    asked = body["choices"][0]["message"]
    status, _ = await proxy.answer([user("u"), asked, result(asked, text)], tools=TOOLS)
    assert status == 200
    calls = {e.call_id: e for e in read_events(log, "calls") if isinstance(e, ModelCalled)}
    assert len(calls[1].context_ids) > RECORD_BYTES_MAX
    assert whole(calls, 1) == engine.asked[1].ids + engine.asked[1].output_ids
    (tool_called,) = read_events(log, "tools")
    assert isinstance(tool_called, ToolCalled)
    assert tool_called.result == text.encode()

    store = Store(run.lake)
    worker = Worker(log, store, run.config())
    worker.close()
    rows = store.table("events/calls", SCHEMAS["calls"]).read().sort_by("call_id").to_pylist()
    assert np.asarray(rows[1]["context_ids"], "<i4").tobytes() == calls[1].context_ids
    (row,) = store.table("events/tools", SCHEMAS["tools"]).read().to_pylist()
    assert row["result"] == text.encode()


def test_a_worker_waits_for_blobs_that_do_not_answer(run: Run, log: Log) -> None:
    """What is read and cannot be decoded now is kept and tried again; the other lanes' events too."""
    log.append([tool("g", 1, bytes(2 * MIB)), tool("g", 2), cell("s", 1)])
    store = Store(run.lake)
    worker = Worker(log, store, run.config())
    root = run.blobs(run.config())
    shutil.move(root, run.path / "away")
    for _ in range(5):
        worker.step(flush=True)
    table = store.table("events/tools", SCHEMAS["tools"])
    assert table.read().num_rows == 0
    shutil.move(run.path / "away", root)
    worker.close()
    table.refresh()
    assert sorted(table.read()["event_id"].to_pylist()) == ["e:tool:1", "e:tool:2"]
    assert store.table("events/dead_letters", DEAD_LETTERS).read().num_rows == 0


def test_the_setting_blobs_says_where_they_lie(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.path.mkdir()
    config = Config(blobs=str(tmp_path / "elsewhere"))
    run.config_file.write_bytes(msgspec.json.encode(config))
    log = run.open_log()
    log.append([tool("g", 1, bytes(2 * MIB))])
    log.close()
    assert [p.stat().st_size for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()] == [2 * MIB]
    assert not (run.path / "blobs").exists()
    assert run.blobs(Config()) == str(run.path / "blobs")
