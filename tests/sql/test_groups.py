"""The state of groups: what they wait for, and their life."""

from __future__ import annotations

import pyarrow as pa

from lake import events as ev
from lake.tables import BYTES_AS
from tests.support.recorder import Recorder, derive, rows


def state(recorder: Recorder) -> tuple[bool, str | None]:
    (row,) = rows(recorder, "group_state")
    assert row["complete"] == (row["waiting_for"] is None)
    return row["complete"], row["waiting_for"]


def test_a_group_says_what_it_waits_for_until_it_is_complete():
    recorder = Recorder()
    recorder.dispatched("g", 3)
    assert state(recorder) == (False, "3 of 3 executions not launched")
    recorder.launched("g", "g/0", 0)
    recorder.launched("g", "g/1", 1)
    assert state(recorder) == (False, "1 of 3 executions not launched; 2 of 3 executions running")
    recorder.launched("g", "g/2", 2)
    recorder.called("g", "g/0", 0)
    recorder.finished("g", "g/0", 2)
    recorder.finished("g", "g/1", 0, "lost")
    recorder.finished("g", "g/2", 0, "crashed")
    assert state(recorder) == (
        False,
        "1 of 3 executions lost, to be launched again; "
        "2 of 3 executions not assessed; 1 calls not in the lake",
    )
    recorder.scored("g", "g/0", 1.0)
    recorder.scored("g", "g/2", None)
    recorder.launched("g", "g/1b", 1, attempt=1)
    assert state(recorder) == (False, "1 of 3 executions running; 1 calls not in the lake")
    recorder.finished("g", "g/1b", 0, "lost")
    recorder.scored("g", "g/1b", None)  # given up: missing is an answer
    assert state(recorder) == (False, "1 calls not in the lake")
    recorder.called("g", "g/0", 1)
    assert state(recorder) == (True, None)


def test_a_lost_execution_with_a_number_is_still_to_be_launched_again():
    recorder = Recorder()
    recorder.whole("g", [1.0])
    recorder.launched("g", "g/0b", 0, attempt=1)
    recorder.finished("g", "g/0b", 0, "lost")
    recorder.scored("g", "g/0b", 1.0)
    assert state(recorder) == (False, "1 of 1 executions lost, to be launched again")


def test_the_state_needs_no_token_lists():
    recorder = Recorder()
    recorder.whole("g", [1.0, 0.0], calls=2)
    tables = recorder.tables()
    calls = tables["event_calls"]
    for name in BYTES_AS:
        at = calls.schema.get_field_index(name)
        field = calls.schema.field(at)
        calls = calls.set_column(at, field, pa.nulls(len(calls), field.type))
    narrow = derive({**tables, "event_calls": calls}, "group_state", "weights", "segments")
    whole = derive(tables, "group_state", "weights", "segments")
    assert narrow == whole


def test_the_life_of_a_group():
    recorder = Recorder()
    recorder.whole("g", [1.0])
    seen = []

    def look() -> None:
        (row,) = rows(recorder, "groups")
        seen.append((row["state"], row["claimed_by"], row["consumed_step"]))

    look()
    recorder.ready("g", scores_end=1)
    look()
    recorder.put(ev.GroupClaimed, group_id="g", step=4, claimed_by="a")
    look()
    recorder.put(ev.GroupClaimed, group_id="g", step=5, claimed_by="b")
    look()
    recorder.consumed("g", step=5, version=5)
    look()
    assert seen == [
        ("DISPATCHED", None, None),
        ("READY", None, None),
        ("CLAIMED", "a", None),
        ("CLAIMED", "b", None),
        ("CONSUMED", "b", 5),
    ]
