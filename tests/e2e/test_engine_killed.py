"""`kill -9` of the engine in the middle of a run: the run goes on, and nothing is lost or there twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lake.layout import Run
from schedulers.control import Fold
from tests.support import sglang
from tests.support.command import SHORT, check_whole, document, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LIVE = 4
Find = Callable[[int], int]
"""The process to kill, by the pid of the engine's first process."""


def pid(folder: Path, process: str, but: int = 0) -> int:
    """The pid of a process of the run in runs/demo, once it is there and another than `but`."""
    while True:
        try:
            found = int(json.loads((folder / "runs/demo/processes.json").read_text())["pids"][process])
        except (OSError, ValueError, KeyError):
            found = but
        if found != but:
            return found
        time.sleep(0.05)


def itself(engine: int) -> int:
    return engine


def server(engine: int) -> int:
    """SGLang's first process: the one whose children the others are."""
    return psutil.Process(engine).children()[0].pid


def scheduler(engine: int) -> int:
    """SGLang's process that has the model."""
    found = psutil.Process(engine).children(recursive=True)
    return next(p.pid for p in found if "sglang::scheduler" in " ".join(p.cmdline()))


@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        pytest.param({}, (itself, itself), id="embedded"),
        pytest.param({"engine": "sglang"}, (scheduler, server), id="sglang", marks=pytest.mark.sglang),
    ],
)
def test_the_engine_killed_twice(tmp_path: Path, settings: dict[str, str], kills: tuple[Find, Find]) -> None:
    if settings:
        sglang.set_up()
        settings |= {"engine.python": str(sglang.VENV / "bin/python")}
    said = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    killed = 0
    with start(("run", "demo", *SHORT, *said, "--run", "runs/demo", "--json"), tmp_path) as run:
        assert run.stdout
        assert run.stderr
        for after, find in zip((0, 4), kills, strict=True):  # steps that are committed before it is killed
            engine = pid(tmp_path, "engine", but=killed)
            fold = Fold(Run(tmp_path / "runs/demo").open_log())
            while len(fold.state.steps) < after or len(fold.state.live) < LIVE:
                fold.follow(0.05)
                assert run.poll() is None, run.stderr.read()
            fold.close()
            os.kill(find(engine), signal.SIGKILL)
            killed = engine
        out, complaints = run.communicate()
        assert run.returncode == 0, complaints
    assert complaints.count("engine was killed by SIGKILL") == 2
    assert json.loads(out)["steps"] == 9
    check_whole(tmp_path, "runs/demo", 9)
    check_nothing_lost(tmp_path, "runs/demo")
    changes = document(
        "sql", "runs/demo", "select change, count(*) n from event_cells where type = 'cell.changed' and "
        "cell = 'engine' group by all order by change", folder=tmp_path,
    )  # fmt: skip
    assert changes == [{"change": "died", "n": 2}, {"change": "started", "n": 3}]


def check_nothing_lost(folder: Path, run: str) -> None:
    """No execution was launched twice or lost; each call of each is in the lake once, without a gap."""
    (executions,) = document(
        "sql", run, "select count(*) n, count(*) filter (status = 'lost' or attempt > 0) lost "
        "from executions", folder=folder,
    )  # fmt: skip
    assert executions["n"] > 0
    assert executions["lost"] == 0
    (calls,) = document(
        "sql", run, "select count(*) n, count(distinct (execution_id, call_id)) d, "
        "(select sum(m) from (select max(call_id) + 1 m from event_calls group by execution_id)) m "
        "from event_calls", folder=folder,
    )  # fmt: skip
    assert calls["n"] == calls["d"] == calls["m"]
