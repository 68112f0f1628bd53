"""A proxy alone and executions of others, as a user has them: real processes before a scripted engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lake.processes import free_port
from tests.support.command import document, headrace, refused, start
from tests.support.tiny_model import write_model_folder

HARNESS = Path(__file__).parents[1] / "support" / "small_harness.py"


@contextmanager
def scripted_engine(folder: Path, delay_s: float = 0.0) -> Iterator[str]:
    """An engine process; its URL."""
    model, port = write_model_folder(folder / "model"), free_port()
    arguments = ["--model", str(model), "--port", str(port), "--delay-s", str(delay_s)]
    command = [sys.executable, "-m", "tests.support.scripted_engine", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def proxy_alone(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`headrace proxy` and what it said."""
    process = start(["proxy", "runs/mine", *arguments, "--json"], folder)
    assert process.stdout
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def harness(folder: Path, lines: str, prompt: str) -> None:
    """Somebody else's harness, with nothing but what `--env` printed."""
    pairs = (line.removeprefix("export ").split("=", 1) for line in lines.splitlines())
    given = {name: value.strip("'") for name, value in pairs}
    environment = {"PATH": os.environ["PATH"], **given}
    command = [sys.executable, str(HARNESS), prompt]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def close_status(made: dict[str, str], key: str) -> int:
    request = urllib.request.Request(
        f"{made['base_url']}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_executions_of_others_reach_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with scripted_engine(tmp_path) as engine:
        with proxy_alone(tmp_path, "--engine", engine, "--model", "model") as (_, said):
            assert said["base_url"] == f"{said['url']}/x/EXECUTION"
            one = document("execution", "new", "runs/mine", "--task", "fix 7", folder=tmp_path)
            other = document("execution", "new", "runs/mine", "--task", "fix 7", folder=tmp_path)
            assert (one["execution"], other["execution"]) == ("fix-7.0", "fix-7-2.0")
            words = ("execution", "new", "runs/mine", "--task", "t", "--group", "pair")
            env = headrace(*words, "--size", "2", "--env", folder=tmp_path).stdout
            two = document(*words, folder=tmp_path)
            assert (two["execution"], two["index"], two["size"]) == ("pair.1", 1, 2)
            assert close_status(one, one["api_key"]) == 200
            assert close_status(one, two["api_key"]) == 403
            assert close_status(one, "x") == 401
            harness(work, env, "calls=2")
            # The proxy dies under them and is started again at its port: they go on.
            pid = json.loads((tmp_path / "runs/mine/processes.json").read_text())["pids"]["proxy"]
            os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + 90
            while True:
                try:
                    with urllib.request.urlopen(f"{said['url']}/health"):
                        break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.1)
            harness(work, env, "calls=1")
            done = document("execution", "finish", "runs/mine", "pair.0", "--score", "0", folder=tmp_path)
            assert [e["type"] for e in done["events"]] == ["execution.finished", "execution.scored"]
            assert (done["events"][0]["calls"], done["events"][1]["value"]) == (3, 0.0)
        # Without a proxy: calls are counted in the log.
        done = document("execution", "finish", "runs/mine", "pair.1", "--missing", "no time", folder=tmp_path)
        assert (done["events"][0]["calls"], done["events"][1]["assessment"]) == (0, "missing")
        again = document("execution", "finish", "runs/mine", "pair.0", "--score", "0.5", folder=tmp_path)
        assert [(e["type"], e["version"]) for e in again["events"]] == [("execution.scored", 1)]
        rows = {r["execution"]: r for r in document("execution", "list", "runs/mine", folder=tmp_path)}
        assert [rows[e]["status"] for e in (one["execution"], "pair.0", "pair.1")] == [
            "live",
            *2 * ["completed"],
        ]
        assert (rows["pair.0"]["score"], rows["pair.0"]["task"], rows["pair.0"]["started by"]) == (
            0.5,
            "t",
            "others",
        )
        headrace("ingest", "runs/mine", "--once", folder=tmp_path)
        ready = document("sql", "runs/mine", "select group_id, state from groups order by 1", folder=tmp_path)
        assert {r["group_id"]: r["state"] for r in ready}["pair"] == "READY"
        assert document("audit", "runs/mine", folder=tmp_path)["rows"] == {}
        monkeypatch.chdir(tmp_path)
        check_refusals(one)
        with proxy_alone(tmp_path) as (_, later):  # the same engine, and the same port
            assert later["url"] == said["url"]
            assert close_status(one, one["api_key"]) == 200


def check_refusals(one: dict[str, str]) -> None:
    """What is no use of these commands, and what they say."""
    for words, said in (
        (["new", "runs/mine", "--task", "t", "--group", "pair"], "has its 2 executions"),
        (["new", "runs/mine", "--task", "other", "--group", "pair"], "is of another task"),
        (["new", "runs/mine", "--task", "t", "--group", "pair", "--size", "3"], "has 2 executions, not 3"),
        (["new", "runs/mine", "--task", "t", "--group", "a/b"], "since it stands in a URL"),
        (["new", "runs/nothing", "--task", "t"], "is not a run"),
        (["finish", "runs/mine", "nobody", "--score", "1"], "knows no execution nobody"),
        (["finish", "runs/mine", one["execution"]], "give --score or --missing"),
        (["finish", "runs/mine", one["execution"], "--score", "nan"], "a finite number"),
        (["finish", "runs/mine", one["execution"], "--score", "1", "--status", "crashed"], "has no score"),
    ):
        status, sentence = refused("execution", *words)
        assert (status, said in sentence) == (2, True), (words, sentence)


@pytest.mark.slow
def test_a_proxy_alone_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model_folder(tmp_path / "model")
    engine = f"http://127.0.0.1:{free_port()}"
    for words, status, said in (
        (["runs/x"], 2, "give --engine"),
        (["runs/x", "--engine", engine, "--model", "model"], 1, "see that it is up"),
        (["runs/x", "--engine", engine, "--model", "nowhere"], 2, "does not exist"),
        (["runs/x", "--engine", engine, "--port", "0"], 2, "not in the range"),
    ):
        found, sentence = refused("proxy", *words)
        assert (found, said in sentence) == (status, True), (words, sentence)
    assert not (tmp_path / "runs").exists()
    with scripted_engine(tmp_path / "e") as url:
        words = ("--engine", url, "--model", "model", "--host", "0.0.0.0")
        said = headrace("proxy", "runs/x", *words, folder=tmp_path, status=1).stderr
        assert "--listen-anywhere: the API keys then travel in clear text" in said
        with proxy_alone(tmp_path, *words, "--listen-anywhere") as (_, told):
            assert "127.0.0.1" not in told["url"]
