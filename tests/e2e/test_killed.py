"""`kill -9` of any process in the middle of a run, then the same command again: nothing lost or twice."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.support.command import SHORT, check_whole, document, headrace, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROCESSES = ("worker", "proxy", "engine", "trainer", "runner")
POINTS = (
    "trainer.mid-step:5",
    "trainer.after-plan:1",
    "trainer.after-optimizer:1",
    "trainer.during-checkpoint:1",
    "trainer.after-checkpoint:1",
    "trainer.after-commit:1",
    "trainer.during-publication:1",
)


def pids(folder: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((folder / "runs/demo/processes.json").read_text())["pids"]
    except (OSError, ValueError):
        return {}
    return found


def kill_in_the_middle(folder: Path, process: str, arguments: tuple[str, ...], steps_more: int) -> int:
    """Start or go on, wait for new steps, kill one process; the steps committed by then."""
    stale = pids(folder)
    with start(("run", *arguments), folder) as run:
        assert run.stderr is not None
        seen = 0
        for line in run.stderr:
            if re.match(r"step +\d+ ", line):
                seen += 1
                if seen >= steps_more and pids(folder) != stale:
                    break
        os.kill(pids(folder)[process], signal.SIGKILL)
        said = run.stderr.read()
        assert run.wait() == 1
    assert f"{process} was killed by SIGKILL" in said
    return seen


def test_each_process_killed_in_the_middle(tmp_path: Path) -> None:
    first = ("demo", *SHORT, "--set", "steps=12", "--run", "runs/demo")
    for number, process in enumerate(PROCESSES):
        kill_in_the_middle(tmp_path, process, first if number == 0 else ("runs/demo",), 1)
    said = document("run", "runs/demo", folder=tmp_path)
    assert said["steps"] == 12
    check_whole(tmp_path, "runs/demo", 12)
    (relaunched,) = document(
        "sql", "runs/demo", "select count(*) as n from executions where attempt > 0", folder=tmp_path
    )
    assert relaunched["n"] > 0
    (groups,) = document(
        "sql", "runs/demo", "select count(*) n, count(distinct group_id) d from event_groups "
        "where type = 'group.consumed'", folder=tmp_path,
    )  # fmt: skip
    assert groups == {"n": 48, "d": 48}


def test_the_trainer_killed_at_every_named_point(tmp_path: Path) -> None:
    arguments: tuple[str, ...] = ("demo", *SHORT, "--run", "runs/demo")
    for point in POINTS:
        done = headrace("run", *arguments, folder=tmp_path, status=1, environment={"HEADRACE_KILL_AT": point})
        assert "trainer was killed by SIGKILL" in done.stderr, point
        arguments = ("runs/demo",)
    assert document("run", "runs/demo", folder=tmp_path)["steps"] == 9
    check_whole(tmp_path, "runs/demo", 9)


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
