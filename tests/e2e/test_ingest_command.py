"""`headrace ingest`: several workers of one command, one of which dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ingest import supervise
from lake.holding import only_one
from lake.layout import Run
from lake.query import open_lake
from lake.store import StoreUnavailable
from tests.support.command import document, headrace, start
from tests.support.run_events import finished_group
from tests.support.workers import a_run, ids_in_lake, ids_of, ready_groups, until

EVENTS = [event for number in range(6) for event in finished_group(number)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = a_run(tmp_path / "run", "partitions=3")
    log = run.open_log()
    log.append(EVENTS)
    log.close()
    return run


def test_once_ends_when_the_lake_holds_the_log(run: Run) -> None:
    told = document("ingest", str(run.path), "--workers", "2", "--once", folder=run.path)
    assert (told["lag"], told["restarts"]) == (0, 0)
    assert told["records"] == len(EVENTS) + 6  # and the workers' own: each group is ready
    assert ids_in_lake(run) == ids_of(EVENTS)
    assert ready_groups(run) == [f"g-{n:06d}" for n in range(6)]
    assert {n: t.num_rows for n, t in open_lake(run.path).audit().items() if t.num_rows} == {}


def pids_of(parent: int) -> list[int]:
    """The workers that a command has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(c) for c in children if b"ingest.worker" in Path(f"/proc/{c}/cmdline").read_bytes()]


def test_a_worker_that_dies_is_started_again(run: Run) -> None:
    command = start(["ingest", str(run.path), "--workers", "2"], run.path)
    try:
        until(lambda: len(ready_groups(run)) == 6)
        dead = pids_of(command.pid)[0]
        os.kill(dead, signal.SIGKILL)
        until(lambda: len(pids_of(command.pid)) == 2 and dead not in pids_of(command.pid))
        log = run.open_log()
        more = [event for number in range(6, 12) for event in finished_group(number)]
        log.append(more)
        log.close()
        until(lambda: len(ready_groups(run)) == 12)
    finally:
        command.send_signal(signal.SIGINT)
        out, said = command.communicate(timeout=60)
    assert command.returncode == 0, said
    assert "was killed by SIGKILL" in said
    assert "starting it again" in said
    assert "calls" in out
    assert ids_in_lake(run) == ids_of([*EVENTS, *more])


def test_a_run_that_is_alive_keeps_its_lanes(run: Run) -> None:
    with only_one(run):
        said = headrace("ingest", str(run.path), "--once", folder=run.path, status=1).stderr
    assert "in use by another" in said


def test_a_look_that_fails_for_now_ends_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    look, said, times = supervise.Watch.look, [], 0

    def away_at_first(watch: supervise.Watch) -> supervise.Standing:
        nonlocal times
        times += 1
        if times <= 2:
            raise StoreUnavailable("the store is away")
        return look(watch)

    monkeypatch.setattr(supervise.Watch, "look", away_at_first)
    standing, restarts = supervise.ingest(
        run, 1, once=True, metrics_port=None, say=said.append, show=lambda _standing: None
    )
    assert said == ["trying again: the store is away"] * 2
    assert (standing.lag(), restarts) == (0, 0)
    assert ids_in_lake(run) == ids_of(EVENTS)
