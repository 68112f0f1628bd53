"""Workers as members of a consumer group: they come, go, die and wake up too late; each event is once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.rederive import derive_set, fresh_lake
from lake.events import Event
from lake.layout import Run
from lake.log import Log
from lake.query import open_lake
from lake.store import Store
from tests.support.lake_digests import digests
from tests.support.run_events import finished_group
from tests.support.workers import Workers, a_run, ids_in_lake, ids_of, is_stopped, ready_groups, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
PARTITIONS = 4


def groups(first: int, last: int) -> list[Event]:
    return [e for number in range(first, last) for e in finished_group(number)]


def check(run: Run, log: Log, events: list[Event]) -> None:
    """Every event once, every group derived once, and all as one worker alone would have made it."""
    assert ids_in_lake(run) == ids_of(events)
    names = sorted({e.key for e in events if e.key})
    assert ready_groups(run) == names
    lake = open_lake(run.path)
    assert {name: t.to_pylist() for name, t in lake.audit().items() if t.num_rows} == {}
    fresh = fresh_lake(log, run.path / "again", lambda _sentence: None)
    derive_set(fresh, run.config().admission, "default", names, lambda _sentence: None)
    assert digests(Store(run.lake)) == digests(fresh)


def test_lanes_move_while_workers_come_and_die(kafka_url: Callable[..., str], tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", f"log={kafka_url(PARTITIONS)}")
    log = run.open_log()
    with Workers(run) as workers:
        log.append(groups(0, 8))
        first = workers.start()
        until(lambda: len(ready_groups(run)) >= 2)
        workers.start()
        log.append(groups(8, 16))
        until(lambda: len(ready_groups(run)) >= 10)
        first.kill()
        log.append(groups(16, 24))
        log.append(groups(20, 22))  # a producer that repeats itself
        until(lambda: len(ready_groups(run)) >= 24)
        workers.stop()
    check(run, log, groups(0, 24))
    log.close()


@pytest.mark.parametrize("point", ["store.before-write", "store.after-write", "store.before-commit"])
def test_a_worker_that_wakes_up_too_late_is_refused(
    point: str, kafka_url: Callable[..., str], tmp_path: Path
) -> None:
    run = a_run(tmp_path / "run", f"log={kafka_url(1)}")
    log = run.open_log()
    with Workers(run) as workers:
        log.append(groups(0, 2))
        zombie = workers.start(HEADRACE_STOP_AT=f"{point}:2")
        until(lambda: is_stopped(zombie))
        log.append(groups(2, 4))
        other = workers.start()
        until(lambda: len(ready_groups(run)) == 4)
        zombie.send_signal(signal.SIGCONT)
        until(lambda: "refused, another worker took over" in workers.said(zombie))
        log.append(groups(4, 6))
        other.kill()
        until(lambda: len(ready_groups(run)) == 6)
        workers.stop()
    check(run, log, groups(0, 6))
    log.close()


def test_a_worker_killed_at_each_point_is_replaced(kafka_url: Callable[..., str], tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", f"log={kafka_url(2)}")
    log = run.open_log()
    points = ("store.before-write", "store.after-write", "store.before-commit", "store.after-commit")
    with Workers(run) as workers:
        workers.start()
        for number, point in enumerate(points):
            doomed = workers.start(HEADRACE_KILL_AT=f"{point}:{2 + number}")
            log.append(groups(4 * number, 4 * number + 2))
            until(lambda w=doomed: "lanes [" in workers.said(w), 30)
            log.append(groups(4 * number + 2, 4 * number + 4))
            until(lambda n=number: len(ready_groups(run)) == 4 * n + 4, 90)
            if doomed.poll() is None:
                doomed.kill()  # it owned no lane that had work
        workers.stop()
    check(run, log, groups(0, 16))
    log.close()
