"""The trainer's fold: which group is next, what a plan or a commit changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake import events as ev
from trainer.ledger import Ledger


def dispatched(group: str, version: int) -> ev.GroupDispatched:
    return ev.GroupDispatched(
        time_us=0, group_id=group, task="{}", size=2, policy_version=version, boundary=version
    )


def ready(group: str, at: int) -> ev.GroupReady:
    return ev.GroupReady(
        time_us=at, group_id=group, set_name="default", scores_end=1, tokens=1, targets=1,
        executions_valid=2, digest=group,
    )  # fmt: skip


def planned(step: int, *groups: str) -> ev.StepPlanned:
    return ev.StepPlanned(
        time_us=0, step=step, policy_version=step, groups=groups, digests=groups, set_name="default",
        micro_steps=tuple(1 for _ in groups), seed=0, learning_rate=0.1,
    )  # fmt: skip


def committed(step: int) -> ev.StepCommitted:
    return ev.StepCommitted(
        time_us=0, step=step, policy_version=step + 1, digest="d", checkpoint="c", loss=0.0,
        gradient_norm=0.0, executions=1, tokens=1, targets=1,
    )  # fmt: skip


def ledger(*events: ev.Event) -> Ledger:
    made = Ledger()
    for event in events:
        made.apply(event)
    return made


def test_oldest_policy_version_first_then_oldest_ready() -> None:
    made = ledger(
        dispatched("a", 3), dispatched("b", 0), dispatched("c", 3), dispatched("d", 0),
        ready("a", 1), ready("c", 2), ready("d", 3), ready("b", 4),
    )  # fmt: skip
    assert made.next_groups(set()) == ["d", "b", "a", "c"]
    assert made.next_groups({"d", "a"}) == ["b", "c"]


def test_a_group_that_was_not_dispatched_or_not_ready_is_not_next() -> None:
    made = ledger(dispatched("a", 0), ready("x", 1))
    assert made.next_groups(set()) == []


def test_a_plan_without_a_commit_is_done_again() -> None:
    made = ledger(dispatched("a", 0), ready("a", 1), planned(0, "a"))
    assert made.next_step == 0
    assert made.planned[0].groups == ("a",)
    made.apply(committed(0))
    assert made.next_step == 1
    assert made.next_groups(set()) == []
    assert made.consumed == {"a": 0}


def test_staleness_is_the_version_at_consumption_minus_that_at_dispatch() -> None:
    assert ledger(dispatched("a", 3)).staleness("a", 5) == 2


@given(st.data())
def test_events_that_come_twice_change_nothing(data: st.DataObject) -> None:
    events = [
        dispatched("a", 0), dispatched("b", 0), ready("a", 1), planned(0, "a"), committed(0), ready("b", 2),
        planned(1, "b"),
    ]  # fmt: skip
    repeated = list(events)
    for event in data.draw(st.lists(st.sampled_from(events), max_size=8)):
        first = repeated.index(event)
        repeated.insert(data.draw(st.integers(first + 1, len(repeated))), event)
    assert ledger(*repeated) == ledger(*events)
