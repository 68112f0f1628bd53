"""Which groups are handed out next, and when a rollout is at its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingest.rollouts.dispatching import group_name, is_done, next_groups, under_way
from ingest.rollouts.launching import OUTSIDE, Launching, heal
from ingest.rollouts.progress import Progress
from lake.config import Config, Rollout
from lake.events import ExecutionFinished, ExecutionLaunched, ExecutionScored, GroupDispatched, GroupReady

TASKS = [f'{{"id": "{n}"}}' for n in range(7)]


def config(waterlevel: int) -> Config:
    return Config(rollout=Rollout(harness="command", command="x", group_size=2, waterlevel=waterlevel))


def ready(group: str) -> GroupReady:
    return GroupReady(
        time_us=0, group_id=group, set_name="default", scores_end=0, tokens=0, targets=0, executions_valid=0,
        digest="",
    )  # fmt: skip


def next_of(progress: Progress, waterlevel: int, held: tuple[str, ...] = ()) -> list[str]:
    events = next_groups(progress, TASKS, config(waterlevel), now_us=5, held=held)
    for event in events:
        assert (event.size, event.task) == (2, TASKS[int(event.group_id[2:])])
        progress.apply(event)
    return [event.group_id for event in events]


def test_without_a_waterlevel_all_is_handed_out_at_once_and_once() -> None:
    progress = Progress()
    assert next_of(progress, 0) == [group_name(n) for n in range(7)]
    assert next_of(progress, 0) == []


def test_the_waterlevel_is_topped_up_oldest_first_by_ready_and_held_back_groups() -> None:
    progress = Progress()
    assert next_of(progress, 3) == ["g-000000", "g-000001", "g-000002"]
    assert next_of(progress, 3) == []
    progress.apply(ready("g-000001"))
    assert next_of(progress, 3) == ["g-000003"]
    assert next_of(progress, 3, held=("g-000000",)) == ["g-000004"]
    assert under_way(progress, 7, ("g-000000",)) == 3


def test_what_a_crash_cut_short_is_completed() -> None:
    progress = Progress()
    for n in (0, 2):  # as if the append had been torn, and a group of others lay there
        progress.apply(next_groups(Progress(), TASKS, config(0), now_us=0)[n])
    progress.apply(
        GroupDispatched(time_us=0, group_id="x-1", task="{}", size=1, policy_version=0, boundary=OUTSIDE)
    )
    assert next_of(progress, 0) == [group_name(n) for n in (1, 3, 4, 5, 6)]


@given(st.integers(1, 9), st.lists(st.integers(0, 6), max_size=20))
def test_never_more_under_way_than_the_waterlevel_and_nothing_left_out(
    level: int, readied: list[int]
) -> None:
    progress, handed = Progress(), []
    for n in [*readied, *range(7), *range(7)]:
        handed += next_of(progress, level)
        assert under_way(progress, 7) <= level
        if group_name(n) in progress.groups:
            progress.apply(ready(group_name(n)))
    assert handed == [group_name(n) for n in range(7)]
    assert is_done(progress, 7)


def test_done_is_ready_or_held_back() -> None:
    progress = Progress()
    next_of(progress, 0)
    for n in range(6):
        progress.apply(ready(group_name(n)))
    assert not is_done(progress, 7)
    assert is_done(progress, 7, {"g-000006": "weights_do_not_sum"})


def test_progress_counts_an_execution_by_its_last_word_and_repeats_change_nothing() -> None:
    events = [
        *next_groups(Progress(), TASKS, config(0), now_us=0)[:1],
        ExecutionLaunched(time_us=1, group_id="g-000000", execution_id="a", index=0),
        ExecutionFinished(time_us=2, group_id="g-000000", execution_id="a", status="lost", calls=0),
        ExecutionLaunched(time_us=3, group_id="g-000000", execution_id="ar1", index=0, attempt=1),
        ExecutionFinished(time_us=4, group_id="g-000000", execution_id="ar1", status="completed", calls=3),
        ExecutionLaunched(time_us=5, group_id="g-000000", execution_id="b", index=1),
        scored("ar1", "scored", 0.0),
        scored("ar1", "scored", 1.0, version=1),
    ]
    progress = Progress()
    for event in events + events:
        progress.apply(event)
    assert [e.execution_id for e in progress.live()] == ["b"]
    assert (dict(progress.statuses()), progress.scores(), progress.calls()) == (
        {"lost": 1, "completed": 1}, [1.0], 3,
    )  # fmt: skip
    assert progress.settled() == set()
    progress.apply(
        ExecutionFinished(time_us=6, group_id="g-000000", execution_id="b", status="crashed", calls=0)
    )
    progress.apply(scored("b", "missing", None))
    assert progress.settled() == {"g-000000"}
    assert dict(progress.assessments()) == {"scored": 1, "missing": 1}


def scored(execution: str, assessment: str, value: float | None, version: int = 0) -> ExecutionScored:
    return ExecutionScored(
        time_us=9, group_id="g-000000", execution_id=execution, assessment=assessment, value=value,
        evaluator="s", version=version,
    )  # fmt: skip


def test_a_runner_leaves_executions_of_others_alone() -> None:
    launching = Launching(attempts_max=4)
    launched = ExecutionLaunched(time_us=1, group_id="x-1", execution_id="x-1.0", index=0)
    dispatched = GroupDispatched(
        time_us=0, group_id="x-1", task="{}", size=2, policy_version=0, boundary=OUTSIDE
    )
    for event in (launched, dispatched, launched):  # topics come in any order
        launching.apply(event)
    assert (launching.next(9), launching.live(), launching.unassessed()) == ([], [], [])
    assert heal(launching, evaluator="s", now_us=0) == []
