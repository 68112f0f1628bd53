"""A rollout on an SGLang that is killed with calls in flight and started again: one slow call each."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest

from ingest.engines.client import EngineClient
from lake.layout import Run
from lake.sglang import CONTEXT_KEPT
from tests.support.command import document, start
from tests.support.sglang import CONTEXT, Server
from tests.support.tiny_model import TEMPLATE

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
TOKENS, CALLS, GROUPS, SIZE = 300, 3, 3, 2
AGENT = f"""
import json, os, urllib.request
ask = urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open
headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
messages = [{{"role": "user", "content": os.environ["HEADRACE_EXECUTION"]}}]
for _ in range({CALLS}):
    body = json.dumps({{"model": "m", "messages": messages, "max_tokens": {TOKENS}}}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = json.load(ask(urllib.request.Request(url, data=body, headers=headers), timeout=800))
    said = answer["choices"][0]["message"]["content"] or ""
    messages += [{{"role": "assistant", "content": said}}, {{"role": "user", "content": "go on"}}]
"""


async def calls_run(url: str, count: int) -> None:
    async with EngineClient(url) as client, asyncio.timeout(120):
        while (await client.loads())[0].running < count:
            await asyncio.sleep(0.05)


def test_an_engine_that_somebody_else_kills_and_starts(tmp_path: Path, sglang_server: Server) -> None:
    if sglang_server.environment is None:
        pytest.skip("HEADRACE_TEST_SGLANG names a server that is not ours to kill")
    shutil.copytree(sglang_server.model, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"prompt": "{n}"}}\n' for n in range(GROUPS)))
    options = (
        *("--model", "model", "--engine", sglang_server.url, "--tasks", "tasks.jsonl"),
        *("--harness", f"{sys.executable} {{here}}/agent.py", "--scorer", "echo 1"),
        *("--group-size", str(SIZE)),
    )
    with start(("rollout", "runs/mine", *options, "--json"), tmp_path) as rollout:
        asyncio.run(calls_run(sglang_server.url, 4))
        sglang_server.control("kill")
        sglang_server.start()
        out, complaints = rollout.communicate()
        assert rollout.returncode == 0, complaints
    said = json.loads(out)
    assert (said["ready"], said["executions"]) == (GROUPS, {"completed": GROUPS * SIZE})
    assert said["calls"] == GROUPS * SIZE * CALLS
    (calls,) = document(
        "sql", "runs/mine", "select count(distinct (execution_id, call_id)) n from event_calls",
        folder=tmp_path,
    )  # fmt: skip
    assert calls["n"] == GROUPS * SIZE * CALLS
    assert document("audit", "runs/mine", folder=tmp_path)["rows"] == {}
    assert Run(tmp_path / "runs/mine").config().engine.context_tokens == CONTEXT - CONTEXT_KEPT
