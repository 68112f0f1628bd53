"""Calls of a foreign proxy that are not canonical, and scores beyond all numbers, through a real worker.

Such a group violates an audit when it is derived: it is never announced, its rows are kept apart, and the
worker goes on with the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lake import events as ev
from lake.layout import Run
from lake.query import open_lake
from tests.support.command import document, headrace
from tests.support.run_events import finished_group
from tests.support.workers import Workers, a_run, ready_groups, until


def edited(number: int, edit: Callable[[ev.Event], ev.Event]) -> list[ev.Event]:
    return [edit(event) for event in finished_group(number)]


def call_of_another_tree(event: ev.Event) -> ev.Event:
    """The last call names a parent that does not own the token before `shared_len`."""
    if isinstance(event, ev.ModelCalled) and event.call_id == 2 and event.execution_id.endswith(".1"):
        return msgspec.structs.replace(event, parent_call_id=0)
    return event


def call_without_parent(event: ev.Event) -> ev.Event:
    """The second call came under another number: the third one's parent is not in the lake."""
    if isinstance(event, ev.ModelCalled) and event.call_id == 1:
        return msgspec.structs.replace(event, call_id=7)
    if isinstance(event, ev.ModelCalled) and event.call_id == 2:
        return msgspec.structs.replace(event, call_id=8)
    if isinstance(event, ev.ExecutionFinished):
        return msgspec.structs.replace(event, calls=1)
    return event


def scores_beyond_all_numbers(event: ev.Event) -> ev.Event:
    """The mean is infinite, and with it every advantage."""
    if isinstance(event, ev.ExecutionScored) and event.value:
        return msgspec.structs.replace(event, value=1.7e308)
    return event


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return a_run(tmp_path / "run")


def append(run: Run, events: list[ev.Event]) -> None:
    with closing(run.open_log()) as log:
        log.append(events)


def ingest(run: Run) -> str:
    """A worker process that reads the log to its end; what it printed."""
    with Workers(run) as workers:
        worker = workers.start()
        until(lambda: "lanes [" in workers.said(worker))
        workers.stop()
        return workers.said(worker)


def held(run: Run, *, status: int = 1) -> dict[str, list[dict[str, Any]]]:
    """group -> the violating rows for which it was held back, as `headrace audit` gives them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in document("audit", str(run.path), folder=run.path, status=status)["held"]:
        found.setdefault(row["group_id"], []).append({"audit": row["audit"], **json.loads(row["row"])})
    return found


def test_a_group_that_violates_an_audit_is_held_back_and_the_others_go_on(run: Run) -> None:
    append(run, finished_group(0))
    append(run, edited(1, call_of_another_tree))
    append(run, edited(3, scores_beyond_all_numbers))
    append(run, finished_group(4))
    log = ingest(run)
    assert ready_groups(run) == ["g-000000", "g-000004"]
    found = held(run)
    assert sorted(found) == ["g-000001", "g-000003"]
    orphans = [row for row in found["g-000001"] if row["audit"] == "orphan_node"]
    assert [(row["execution_id"], row["call_id"]) for row in orphans] == [("g-000001.1", 2)]
    assert {row["audit"] for row in found["g-000003"]} >= {"weights_do_not_sum"}
    assert "group g-000001 is not announced, its rows violate" in log
    with closing(open_lake(run.path)) as lake:
        there = lake.rows("select distinct group_id from weights order by 1")
        violations = lake.rows("select distinct group_id from violations order by 1")
    assert [row["group_id"] for row in there] == ["g-000000", "g-000004"]
    assert [row["group_id"] for row in violations] == sorted(found)


def test_a_worker_that_starts_again_says_the_same_once_and_a_repaired_group_is_announced(run: Run) -> None:
    bad = edited(1, scores_beyond_all_numbers)
    append(run, [*finished_group(0), *bad])
    ingest(run)
    first = held(run)
    append(run, finished_group(2))
    ingest(run)  # the group is open still: it is derived again, and found the same
    assert held(run) == first
    assert ready_groups(run) == ["g-000000", "g-000002"]
    scores = [e for e in bad if isinstance(e, ev.ExecutionScored)]
    append(run, [msgspec.structs.replace(e, value=0.5, version=1) for e in scores])
    ingest(run)
    assert ready_groups(run) == ["g-000000", "g-000001", "g-000002"]
    assert held(run, status=0) == {}


def test_a_call_whose_parent_never_came_is_no_orphan_while_the_group_is_open(run: Run) -> None:
    append(run, edited(1, call_without_parent))
    ingest(run)
    assert ready_groups(run) == ["g-000001"]  # it reported one call: the others are of no tree
    said = headrace("audit", str(run.path), folder=run.path, status=1)
    assert "parent call 1 is not in the lake" in said.stdout
