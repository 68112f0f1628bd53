"""`python -m ingest.proxy`: up on a run's folder, a call through it, a clean end; wrong use is told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import aiohttp
import msgspec
import pytest
from tokenizers import Tokenizer

from ingest.identity import read_secret, sign
from lake.config import Config
from lake.layout import Run
from lake.log import open_log
from tests.support.running_proxy import read_events
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(Config()))
    write_model_folder(run.weights(0))
    return run


async def start(*arguments, **environment):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ingest.proxy", *arguments,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_process_serves_and_ends(run):
    """With two engines, of which one is away and the other (case 29, Gym#1557) asks for a key."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    tokenizer = Tokenizer.from_file(str(run.weights(0) / "tokenizer.json"))
    async with ScriptedEngine(tokenizer, lambda _: Say("yes")) as engine:
        engine.key = "sk-engine"
        process = await start(
            "--run", str(run.path), "--engine", "http://127.0.0.1:1", "--engine", engine.url,
            "--port", port, HEADRACE_ENGINE_KEY="sk-engine",
        )  # fmt: skip
        key = sign(read_secret(run), "g-1", "e-1")
        async with aiohttp.ClientSession(headers={"X-Api-Key": key}) as session:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    async with session.get(f"{url}/health") as reply:
                        assert reply.status == 200
                        break
                except aiohttp.ClientConnectionError:
                    assert process.returncode is None
                    await asyncio.sleep(0.1)
            body = {"messages": [{"role": "user", "content": "u"}]}
            async with session.post(f"{url}/x/e-1/v1/chat/completions", json=body) as reply:
                assert (await reply.json())["choices"][0]["message"]["content"] == "yes"
            async with session.post(f"{url}/x/e-1/close") as reply:
                assert await reply.json() == {"calls": 1}
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    log = open_log(run.log_url(run.config()))
    (call,) = read_events(log, "calls")
    log.close()
    assert (call.execution_id, call.engine) == ("e-1", engine.url)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: [], "no chat template"),
        (lambda run: ["--run", str(run.path / "no")], "is not a run"),
        (lambda run: ["--host", "0.0.0.0"], "loopback"),
    ],
)
async def test_wrong_use_is_told(run, change, words):
    (run.weights(0) / "chat_template.jinja").unlink()
    arguments = ["--run", str(run.path), "--engine", "http://127.0.0.1:1", "--port", "1", *change(run)]
    process = await start(*arguments)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert words in errors.decode()
