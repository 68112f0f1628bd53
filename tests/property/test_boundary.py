"""Boundary dispatch: the account of ages, and the identity of a finite run, exactly."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from lake import config as configs
from lake.config import Config
from lake.events import ExecutionFinished, ExecutionScored, GroupConsumed, GroupDispatched, PolicyPublished
from schedulers.policies import boundary
from schedulers.state import State


def run_config(groups: int, halves: int, mu: int, bursts: int) -> Config:
    phi = halves / 2 if (halves * groups) % 2 == 0 else float(halves)
    return configs.parse(
        {"steps": mu * bursts, "rollout": {"groups_per_step": groups, "phi": phi, "mu": mu, "group_size": 2}}
    )


def dispatch(state: State, decision: boundary.Dispatch, count: int | None = None) -> None:
    for n in range(decision.first, decision.first + (decision.count if count is None else count)):
        state.apply(
            GroupDispatched(
                time_us=n,
                group_id=f"g-{n:06d}",
                task="{}",
                size=2,
                policy_version=decision.policy_version,
                boundary=decision.boundary,
            )
        )


@given(
    groups=st.integers(1, 5),
    halves=st.integers(0, 4),
    mu=st.integers(1, 4),
    bursts=st.integers(1, 6),
    data=st.data(),
)
def test_measured_staleness_is_the_identity(
    groups: int, halves: int, mu: int, bursts: int, data: st.DataObject
) -> None:
    config = run_config(groups, halves, mu, bursts)
    r, state = config.rollout, State()
    ages: list[int] = []
    for step in range(config.steps + 1):
        if step % mu == 0:
            state.apply(
                PolicyPublished(time_us=step, policy_version=step, boundary=step // mu, weights="", digest="")
            )
            while (decision := boundary.decide(state, config)) is not None:
                cut = data.draw(st.integers(1, decision.count))  # a controller killed in the middle
                dispatch(state, decision, cut)
            if step < config.steps:
                unconsumed = len(state.groups) - len(state.consumed)
                assert unconsumed == (r.phi + mu) * groups
        if step == config.steps:
            break
        left = sorted(set(state.groups) - state.consumed)
        for group in data.draw(st.permutations(left))[:groups]:  # whatever the order of consumption
            ages.append(step - state.groups[group].policy_version)
            state.apply(GroupConsumed(time_us=step, group_id=group, step=step, policy_version=step))
    assert len(state.groups) == boundary.groups_in_run(config)
    end = sum(config.steps - state.groups[g].policy_version for g in set(state.groups) - state.consumed)
    total = config.steps * groups
    predicted = Fraction(r.phi) + Fraction(mu - 1, 2) - Fraction(end, total)
    assert Fraction(sum(ages), total) == predicted


def test_nothing_is_dispatched_before_the_first_publication_nor_after_the_last_step() -> None:
    config, state = run_config(2, 1, 2, 2), State()
    assert boundary.decide(state, config) is None
    state.apply(PolicyPublished(time_us=0, policy_version=4, boundary=2, weights="", digest=""))
    assert boundary.decide(state, config) is None


def test_a_lost_execution_is_in_the_water_until_its_place_is_given_up() -> None:
    state = State()
    dispatch(state, boundary.Dispatch(0, 1, 0, 0))
    assert state.waterlevel == 2

    def finish(execution: str, status: str) -> None:
        state.apply(
            ExecutionFinished(time_us=1, group_id="g-000000", execution_id=execution, status=status, calls=0)
        )

    finish("g-000000.0", "completed")
    finish("g-000000.1", "lost")
    assert state.waterlevel == 1
    state.apply(
        ExecutionScored(
            time_us=2,
            group_id="g-000000",
            execution_id="g-000000.1",
            assessment="missing",
            value=None,
            evaluator="run",
        )
    )
    assert state.waterlevel == 0


def test_groups_of_others_take_no_place_of_those_that_are_handed_out() -> None:
    config, state = run_config(2, 0, 1, 3), State()
    state.apply(PolicyPublished(time_us=0, policy_version=0, boundary=0, weights="", digest=""))
    outside = GroupDispatched(time_us=0, group_id="x", task="{}", size=1, policy_version=0, boundary=-1)
    state.apply(outside)
    assert boundary.decide(state, config) == boundary.Dispatch(0, 2, 0, 0)
