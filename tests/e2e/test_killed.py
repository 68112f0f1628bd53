"""`kill -9` of any process in the middle of a run, then the same command again: nothing lost or twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from lake.layout import Run
from lake.log import open_log
from schedulers.control import Fold
from tests.support.command import SHORT, check_whole, document, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROCESSES = ("proxy", "worker", "trainer", "runner")  # the engine is started again: test_engine_killed
SERVING = ("proxy", "runner")
LIVE = 4


def pids(folder: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((folder / "runs/demo/processes.json").read_text())["pids"]
    except (OSError, ValueError):
        return {}
    return found


def running(folder: Path, stale: dict[str, int]) -> Fold:
    """The fold over the log of a run that has just been started, once its processes are there."""
    while not (now := pids(folder)) or now == stale:
        time.sleep(0.05)
    run = Run(folder / "runs/demo")
    return Fold(open_log(run.log_url(run.config())))


def kill_in_the_middle(folder: Path, process: str, arguments: tuple[str, ...]) -> None:
    """Start or go on; kill a process that serves executions while some are live, others after a step."""
    stale = pids(folder)
    with start(("run", *arguments), folder) as run:
        fold = running(folder, stale)
        fold.catch_up()
        before = len(fold.state.steps)
        while True:
            fold.follow(0.05)
            served = process not in SERVING or len(fold.state.live) >= LIVE
            if served and (process in SERVING or len(fold.state.steps) > before):
                break
            assert run.poll() is None, run.stderr and run.stderr.read()
        os.kill(pids(folder)[process], signal.SIGKILL)
        fold.close()
        assert run.wait() == 1
        assert run.stderr is not None
        assert f"{process} was killed by SIGKILL" in run.stderr.read()


def test_each_process_killed_in_the_middle(tmp_path: Path) -> None:
    first = ("demo", *SHORT, "--set", "steps=12", "--run", "runs/demo")
    for number, process in enumerate(PROCESSES):
        kill_in_the_middle(tmp_path, process, first if number == 0 else ("runs/demo",))
    said = document("run", "runs/demo", folder=tmp_path)
    assert said["steps"] == 12
    check_whole(tmp_path, "runs/demo", 12)
    (relaunched,) = document(
        "sql", "runs/demo", "select count(*) as n from executions where attempt > 0", folder=tmp_path
    )
    assert relaunched["n"] >= LIVE
    (groups,) = document(
        "sql", "runs/demo", "select count(*) n, count(distinct group_id) d from event_groups "
        "where type = 'group.consumed'", folder=tmp_path,
    )  # fmt: skip
    assert groups == {"n": 48, "d": 48}


def test_the_run_itself_killed_leaves_no_orphans_and_goes_on(tmp_path: Path) -> None:
    with start(("run", "demo", *SHORT, "--run", "runs/demo"), tmp_path) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if re.match(r"step +\d+ ", line):
                break
        children = pids(tmp_path)
        run.kill()
        run.wait()
    until = time.monotonic() + 10
    while any(Path(f"/proc/{p}").exists() for p in children.values()) and time.monotonic() < until:
        time.sleep(0.05)
    assert [n for n, p in children.items() if Path(f"/proc/{p}").exists()] == []
    assert document("run", "runs/demo", folder=tmp_path)["steps"] == 9
    check_whole(tmp_path, "runs/demo", 9)


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with start(("run", "demo", *SHORT, "--run", "runs/demo"), tmp_path) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if re.match(r"step +\d+ ", line):
                break
        run.send_signal(signal.SIGINT)
        said = run.stderr.read()
        assert run.wait() == 1
    assert "the same command goes on from here" in said
    lag = document("sql", "runs/demo", "select count(*) as n from event_policy", folder=tmp_path)
    assert lag[0]["n"] > 0
    assert document("run", "demo", "--run", "runs/demo", folder=tmp_path)["steps"] == 9
    check_whole(tmp_path, "runs/demo", 9)
    for derived in ("lake", "weights", "checkpoints", "replays"):  # the log alone is enough
        shutil.rmtree(tmp_path / "runs/demo" / derived)
    said = document("replay", "runs/demo", "--check", folder=tmp_path)
    assert said == {"steps": 9, "equal": 9, "differing": []}
