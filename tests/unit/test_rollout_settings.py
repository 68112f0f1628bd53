"""What a rollout is given, beside what a run has already."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingest.rollouts.settings import Given, begin, check, context_tokens, go_on
from lake.config import Config, ConfigError
from lake.layout import Run
from lake.sglang import CONTEXT_KEPT
from tests.support.tiny_model import write_model_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_model_folder(tmp_path / "my-model")
    (tmp_path / "agent.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(**more: object) -> Given:
    return Given(
        **({"harness": "sh agent.py {prompt}", "tasks": Path("t.jsonl"), "model": Path("my-model")} | more)
    )


def a_run(folder: Path, config: Config) -> Run:
    run = Run(folder / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(config))
    return run


def test_a_new_rollout_takes_its_limits_from_the_model(folder: Path) -> None:
    config = begin(given(numbers={"group_size": 1, "waterlevel": None}, settings=("temperature=0.7",)))
    assert (config.name, config.model.weights) == ("my-model", str(folder / "my-model"))
    rollout = config.rollout
    assert (rollout.harness, rollout.command, rollout.here) == (
        "command",
        "sh agent.py {prompt}",
        str(folder),
    )
    assert (rollout.tasks, rollout.group_size, rollout.waterlevel) == (str(folder / "t.jsonl"), 1, 0)
    assert (rollout.temperature, rollout.harness_timeout_s, rollout.concurrent_executions) == (0.7, 3600, 8)
    assert config.engine.context_tokens == rollout.new_tokens_max == 8192  # the embedded engine's bound
    assert context_tokens(folder / "my-model", embedded=False) == 32768
    (folder / "my-model/config.json").write_text(
        json.dumps({"text_config": {"max_position_embeddings": 262144}})
    )
    assert context_tokens(folder / "my-model", embedded=False) == 262144


@pytest.fixture
def serving() -> Iterator[Callable[[dict[str, Any]], str]]:
    """An engine that says so of itself at /server_info; its URL."""
    servers: list[ThreadingHTTPServer] = []

    def serve(said: dict[str, Any]) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/server_info" and said else 404)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({}, 32768),  # an engine without the path: what the model says
        ({"context_length": 4096}, 4096),
        ({"context_length": 4096, "disaggregation_mode": "null"}, 4096 - CONTEXT_KEPT),
        ({"context_length": None, "disaggregation_mode": "null"}, 32768 - CONTEXT_KEPT),
        ({"context_length": 10**6}, 32768),
    ],
)
def test_a_prompt_may_be_as_long_as_engine_and_model_take(
    folder: Path, serving: Callable[[dict[str, Any]], str], said: dict[str, Any], tokens: int
) -> None:
    """Else an engine refuses what the proxy let through, and no harness knows that it must compact."""
    engines = [serving(said), serving({})]
    assert context_tokens(folder / "my-model", embedded=False, engines=engines) == tokens
    pair = f"{serving({})}#prefill={engines[0]}"
    assert context_tokens(folder / "my-model", embedded=False, engines=[pair]) == tokens


def test_what_is_given_again_must_be_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = begin(given(numbers={"group_size": 2}, settings=("log=kafka://h:9",)))
    run = a_run(folder, msgspec.structs.replace(config, log="kafka://h:9/headrace-run-1?partitions=1"))
    same = go_on(run, given(numbers={"group_size": 2, "waterlevel": None}, settings=("log=kafka://h:9",)))
    assert same == go_on(run, Given()) == run.config()
    assert go_on(run, Given(engines=("http://h:1",))).rollout.engines == ("http://h:1",)
    for other, said in (
        (given(harness="true"), "rollout.command would differ"),
        (Given(numbers={"group_size": 3}), "rollout.group_size would differ"),
        (Given(settings=("seed=1",)), "seed would differ"),
        (Given(model=Path("/other")), "model.weights would differ"),
    ):
        with pytest.raises(ConfigError, match=said):
            go_on(run, other)


def test_what_is_probably_not_meant_is_said(folder: Path) -> None:
    tasks = [json.dumps({"id": "a", "prompt": "x"}), json.dumps({"id": "b", "prompt": "-rf"})]
    said = check(begin(given()), tasks)
    assert said[0].startswith("--harness: agent.py is a file here")
    assert "write {here}/agent.py" in said[0]
    assert said[1].startswith("--harness: the prompt of task b begins with -")
    assert check(begin(given(harness="sh {here}/agent.py -- {prompt}")), tasks) == []


def test_a_model_is_needed(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--model is needed"):
        begin(given(model=None))
    (folder / "my-model/tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
        begin(given())
