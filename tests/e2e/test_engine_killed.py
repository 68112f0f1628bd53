"""`kill -9` of the engine in the middle of a run: the run goes on, and nothing is lost or there twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from lake.layout import Run
from schedulers.control import Fold
from tests.support.command import SHORT, check_whole, document, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIVE = 4


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


def test_the_engine_killed_twice(tmp_path: Path) -> None:
    killed = 0
    with start(("run", "demo", *SHORT, "--run", "runs/demo", "--json"), tmp_path) as run:
        assert run.stdout
        assert run.stderr
        for after in (0, 4):  # steps that are committed before it is killed, with executions under way
            engine = pid(tmp_path, "engine", but=killed)
            fold = Fold(Run(tmp_path / "runs/demo").open_log())
            while len(fold.state.steps) < after or len(fold.state.live) < LIVE:
                fold.follow(0.05)
                assert run.poll() is None, run.stderr.read()
            fold.close()
            os.kill(engine, signal.SIGKILL)
            killed = engine
        said, complaints = run.communicate()
        assert run.returncode == 0, complaints
    assert complaints.count("engine was killed by SIGKILL") == 2
    assert json.loads(said)["steps"] == 9
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
