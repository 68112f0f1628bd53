"""`headrace rollout` as a user runs it: a harness of one's own, tasks, a scorer; killed, and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from lake.events import Event
from lake.layout import Run
from lake.processes import free_port
from tests.support.command import HEADRACE, document, headrace, refused, start
from tests.support.random_model import make_tiny_model
from tests.support.running_proxy import read_events
from tests.support.terminal import terminal
from tests.support.tiny_model import TEMPLATE, write_model_folder

HARNESS = Path(__file__).parents[1] / "support" / "small_harness.py"
ODD = 'Say "it\'s {prompt} {{x}} ${HOME}"; exit 1\n\n\ttail \\ \u2028 \u4f60 \U0001f600 calls=2'
COMMON = ("--harness", f"{sys.executable} {{here}}/agent.py {{prompt}}", "--tasks", "tasks.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(HARNESS.read_text())
    (tmp_path / "score.py").write_text(
        "import json, os, sys\n"
        "task = json.load(open(sys.argv[1]))\n"
        "if 'evaluator' in task: sys.exit(task['evaluator'])\n"
        "if os.environ['HEADRACE_EXECUTION'].endswith('.2'): task['worth'] = task['last']\n"
        "print('tests passed')\n"
        "print(json.dumps({'score': task['worth'], 'detail': os.environ['HEADRACE_STATUS']}))\n"
    )
    return tmp_path


def write_tasks(folder: Path, *tasks: dict[str, Any]) -> None:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")


def events_of(folder: Path, topic: str) -> list[Event]:
    with closing(Run(folder / "runs/mine").open_log()) as log:
        return read_events(log, topic)


def nothing_twice(folder: Path) -> None:
    for topic in ("groups", "executions", "scores"):
        counts = Counter(e.event_id for e in events_of(folder, topic))
        assert {e: n for e, n in counts.items() if n > 1} == {}


def harnesses_alive(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(folder / "agent.py") in words and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def until(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_tasks_are_carried_out_scored_and_in_the_lake(folder: Path) -> None:
    """Everything real: the embedded engine on a tiny model, too."""
    make_tiny_model(folder / "model")
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    write_tasks(
        folder,
        {"id": "odd", "prompt": ODD, "worth": 0},
        {"id": "b", "prompt": "calls=1", "worth": 0.5},
        {"id": "crash", "prompt": "calls=1 exit=3", "worth": 1},
        {"prompt": "calls=1", "evaluator": 9},
    )
    options = (
        "--model",
        "model",
        "--scorer",
        f"{sys.executable} {{here}}/score.py {{task}}",
        "--group-size",
        "2",
    )
    said = document("rollout", "runs/mine", *COMMON, *options, folder=folder)
    assert (said["groups"], said["ready"], said["held"], said["calls"]) == (4, 4, {}, 10)
    assert said["executions"] == {"completed": 6, "crashed": 2}
    assert said["assessments"] == {"scored": 4, "missing": 4}
    assert said["score_mean"] == 0.25
    rows = document(
        "sql",
        "runs/mine",
        "select g.task->>'id' id, a.assessment, a.value, s.detail, e.calls, e.status from "
        "executions e join groups g using (group_id) join assessments a using (execution_id) "
        "join event_scores s using (execution_id) where e.index = 0 order by e.group_id", folder=folder,
    )  # fmt: skip
    assert [(r["id"], r["assessment"], r["value"], r["calls"], r["status"]) for r in rows] == [
        ("odd", "scored", 0.0, 2, "completed"),
        ("b", "scored", 0.5, 1, "completed"),
        ("crash", "missing", None, 1, "crashed"),
        ("4", "missing", None, 1, "completed"),
    ]
    assert (rows[0]["detail"], "ended with status 9" in rows[3]["detail"]) == ("completed", True)
    assert (folder / "runs/mine/workspaces/g-000000.1/work/prompt.txt").read_text(encoding="utf-8") == ODD
    assert document("audit", "runs/mine", folder=folder)["rows"] == {}
    nothing_twice(folder)
    # The same command again has nothing to do; another one is refused before anything happens.
    again = document("rollout", "runs/mine", *COMMON, *options, folder=folder)
    assert {**again, "seconds": 0} == {**said, "seconds": 0}
    assert document("rollout", "runs/mine", folder=folder)["ready"] == 4
    differing = headrace("rollout", "runs/mine", "--group-size", "3", folder=folder, status=2).stderr
    assert "rollout.group_size would differ" in differing
    write_tasks(folder, {"prompt": "another", "worth": 1})
    assert "is not as it was" in headrace("rollout", "runs/mine", *COMMON, folder=folder, status=2).stderr


@contextmanager
def scripted_engine(folder: Path, delay_s: float) -> Iterator[str]:
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


@pytest.mark.slow
def test_killed_at_any_place_it_goes_on_and_nothing_is_there_twice(folder: Path) -> None:
    write_tasks(folder, *({"id": f"t{n}", "prompt": f"number {n} calls=4 sleep=300"} for n in range(6)))
    with scripted_engine(folder, 0.2) as engine:
        options = ("--model", "model", "--engine", engine, "--group-size", "2", "--concurrent", "4")
        command = ["rollout", "runs/mine", *COMMON, *options, "--waterlevel", "3"]
        process = start(command, folder)
        until(lambda: len(harnesses_alive(folder)) >= 2, process)
        process.kill()  # and with it the runner, by the kernel: their harnesses must not live on
        process.communicate()
        until(lambda: not harnesses_alive(folder))

        process = start([*command, "--json"], folder)
        pids = folder / "runs/mine/processes.json"
        before = json.loads(pids.read_text())["pids"]
        until(lambda: json.loads(pids.read_text())["pids"] != before, process)
        for name in ("runner", "proxy", "worker"):
            until(lambda: len(harnesses_alive(folder)) >= 2, process)
            pid = json.loads(pids.read_text())["pids"][name]
            os.kill(pid, signal.SIGKILL)
            until(lambda name=name, pid=pid: json.loads(pids.read_text())["pids"][name] != pid, process)
        out, err = process.communicate()
    assert process.returncode == 0, err
    said = json.loads(out)
    assert (said["ready"], said["restarts"], said["held"]) == (6, 3, {})
    assert said["executions"]["completed"] == 12  # the proxy's death cost none of them
    assert said["executions"]["lost"] >= 2  # those of the runners
    assert said["assessments"] == {"missing": 12}  # no scorer
    for name in ("runner", "proxy", "worker"):
        assert f"{name} was killed by SIGKILL" in err
    nothing_twice(folder)
    assert document("audit", "runs/mine", folder=folder)["rows"] == {}
    finished = {e.execution_id: e for e in events_of(folder, "executions") if e.TYPE == "execution.finished"}
    calls = Counter(e.execution_id for e in events_of(folder, "calls") if e.delivered)
    assert {calls[e] for e, event in finished.items() if event.status == "completed"} == {4}


@pytest.mark.slow
def test_stopped_it_goes_on_and_a_group_that_an_audit_holds_back_is_told(folder: Path) -> None:
    write_tasks(
        folder,
        {"id": "good", "prompt": "calls=3 sleep=500", "worth": 1, "last": 0},
        {"id": "bad", "prompt": "calls=1", "worth": 1.7e308, "last": 0},  # their mean is beyond all numbers
    )
    with scripted_engine(folder, 0.1) as engine:
        scorer = ("--scorer", f"{sys.executable} {{here}}/score.py {{task}}")
        options = ("--model", "model", "--engine", engine, "--group-size", "3", "--concurrent", "3")
        command = ["rollout", "runs/mine", *COMMON, *scorer, *options]
        with terminal([str(HEADRACE), *command], folder, {}) as screen:  # a table that changes, and Ctrl-C
            screen.until("3 live; ended: none")
            screen.until("g-000000.2")
            screen.type("\x03")
            screen.until("stopping: harnesses are ended")
            assert screen.end() == 1
            assert "the same command goes on from here" in screen.text
        assert harnesses_alive(folder) == []
        done = headrace(*command, "--json", folder=folder, status=1)
    said = json.loads(done.stdout)
    assert (said["groups"], said["ready"], list(said["held"])) == (2, 1, ["g-000001"])
    assert "g-000001 is held back: " in done.stderr
    assert said["executions"]["completed"] == 6
    nothing_twice(folder)


@pytest.mark.slow
def test_a_run_of_training_takes_any_harness_too(folder: Path) -> None:
    make_tiny_model(folder / "model")
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    write_tasks(folder, *({"prompt": f"number {n} calls=2", "worth": n, "last": 0} for n in range(3)))
    (folder / "mine.toml").write_text(
        'name = "mine"\nsteps = 3\n[model]\nweights = "model"\n[engine]\ncontext_tokens = 1024\n'
        '[rollout]\nharness = "command"\ntasks = "tasks.jsonl"\ngroups_per_step = 1\ngroup_size = 3\n'
        f'phi = 0.0\nmu = 1\ncommand = "{sys.executable} {folder}/agent.py {{prompt}}"\n'
        f'scorer = "{sys.executable} {folder}/score.py {{task}}"\n'
    )
    said = document("run", "mine.toml", "--run", "runs/mine", folder=folder)
    assert (said["steps"], said["score_last5"]) == (3, pytest.approx((0 + 2 / 3 + 4 / 3) / 3))
    replayed = document("replay", "runs/mine", "--check", folder=folder)
    assert replayed == {"steps": 3, "equal": 3, "differing": []}
    few = ("mine.toml", "--run", "runs/more", "--set", "steps=4")
    assert "has 3 tasks, the run hands out 4" in headrace("run", *few, folder=folder, status=2).stderr


def test_what_cannot_be_is_refused_before_anything_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    write_model_folder(folder / "model")
    write_tasks(folder, {"prompt": "x"})
    (folder / "bad.jsonl").write_text('{"prompt": "x"}\n{"prompt": }\n')
    (folder / "long.jsonl").write_text(json.dumps({"prompt": "x" * 140_000}))
    tasks, model = ("--tasks", "tasks.jsonl"), ("--model", "model")
    for words, said in (
        ([*tasks, *model], "needs --harness and --tasks"),
        (["--harness", "true", *model], "needs --harness and --tasks"),
        (["--harness", "true", *tasks], "--model is needed"),
        (["--harness", "true {promt}", *tasks, *model], "unknown placeholder {promt}"),
        (["--harness", "nowhere-to-be-found", *tasks, *model], "there is no program 'nowhere-to-be-found'"),
        (["--harness", "true", "--scorer", "./none", *tasks, *model], "there is no program './none'"),
        (["--harness", "true", "--tasks", "bad.jsonl", *model], "bad.jsonl, line 2:"),
        (["--harness", "true {prompt}", "--tasks", "long.jsonl", *model], "write {prompt_file} or {task}"),
        (["--harness", "true", *tasks, *model, "--home", "nowhere"], "rollout.home"),
        (["--harness", "true", *tasks, *model, "--env", "1=2"], "rollout.environment"),
        (["--harness", "true", *tasks, *model, "--set", "group_size=0"], "at least 1"),
    ):
        status, sentence = refused("rollout", "runs/mine", *words)
        assert (status, said in sentence) == (2, True), (words, sentence)
    engine = f"http://127.0.0.1:{free_port()}"
    status, sentence = refused("rollout", "runs/mine", "--harness", "true", *tasks, "--engine", engine)
    assert (status, f"--engine {engine}: " in sentence) == (1, True)
    assert not (folder / "runs").exists()
