"""The launching fold: each place launched once an attempt, oldest first, closed once, whatever happens.

A model of a runner draws its fate from hypothesis: it launches, ends executions in any order and in any
way, and dies at any event, in the middle of an append too.  A new one starts from the log alone.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.rollouts.launching import Launching, heal
from lake.events import ExecutionFinished, ExecutionLaunched, ExecutionScored, GroupDispatched

ATTEMPTS_MAX = 3


def dispatched(number, size, version=0, time_us=None):
    return GroupDispatched(
        time_us=number if time_us is None else time_us,
        group_id=f"g{number}",
        task=f"task {number}",
        size=size,
        policy_version=version,
        boundary=version,
    )


def launched(launch):
    return ExecutionLaunched(
        time_us=0,
        group_id=launch.group_id,
        execution_id=launch.execution_id,
        index=launch.index,
        attempt=launch.attempt,
    )


def finished(launch, status="completed"):
    return ExecutionFinished(
        time_us=0, group_id=launch.group_id, execution_id=launch.execution_id, status=status, calls=0
    )


def scored(launch, assessment="scored", version=0):
    value = None if assessment == "missing" else 1.0
    return ExecutionScored(
        time_us=0,
        group_id=launch.group_id,
        execution_id=launch.execution_id,
        assessment=assessment,
        value=value,
        evaluator="e",
        version=version,
    )


def folded(events, attempts_max=ATTEMPTS_MAX):
    launching = Launching(attempts_max)
    for event in events:
        launching.apply(event)
    return launching


class Model:
    """A runner without a network, and the log that outlives it."""

    def __init__(self, groups, slots):
        self.log, self.slots, self.to_come = [], slots, list(groups)
        self.start()

    def start(self):
        self.launching = folded(self.log)
        self.append(heal(self.launching, evaluator="e", now_us=0))

    def append(self, events, only=None):
        """`only`: how many of them reach the log before the runner dies."""
        for event in list(events)[:only]:
            self.log.append(event)
            self.launching.apply(event)

    def step(self, draw):
        live = self.launching.live()
        acts = ["die"] * (draw(st.integers(0, 5)) == 0)
        acts += ["dispatch"] * bool(self.to_come) + ["end"] * bool(live)
        room = self.slots - len(live)
        acts += ["launch"] * bool(self.launching.next(room))
        if not acts:
            return
        act = draw(st.sampled_from(acts))
        if act == "die":
            self.start()
        elif act == "dispatch":
            self.append([self.to_come.pop(0)])
        elif act == "launch":
            events = [launched(launch) for launch in self.launching.next(room)]
            assert len(events) <= room
            self.append_or_die(events, draw)
        else:
            launch = draw(st.sampled_from(live))
            if draw(st.booleans()):
                self.append_or_die([finished(launch), scored(launch)], draw)
            else:
                self.append_or_die(self.launching.lost(launch, "why", evaluator="e", now_us=0), draw)

    def append_or_die(self, events, draw):
        only = draw(st.one_of(st.none(), st.integers(0, len(events))))
        self.append(events, only)
        if only is not None:
            self.start()


def groups():
    return st.lists(st.integers(1, 3), min_size=1, max_size=4).map(
        lambda sizes: [dispatched(n, size, version=n // 2) for n, size in enumerate(sizes)]
    )


@settings(max_examples=80, deadline=None)
@given(data=st.data(), groups=groups(), slots=st.integers(1, 4))
def test_every_place_ends_closed_and_was_launched_once_an_attempt(data, groups, slots):
    model = Model(groups, slots)
    for _ in range(data.draw(st.integers(0, 30))):
        model.step(data.draw)
    while model.to_come or model.launching.next(1) or model.launching.live():  # then all goes well
        model.append([model.to_come.pop(0)] if model.to_come else [])
        model.append([launched(x) for x in model.launching.next(slots - len(model.launching.live()))])
        for launch in model.launching.live():
            model.append([finished(launch), scored(launch)])

    launches = [e for e in model.log if isinstance(e, ExecutionLaunched)]
    ends = {e.execution_id: e for e in model.log if isinstance(e, ExecutionFinished)}
    places = {(g.group_id, i) for g in groups for i in range(g.size)}
    assert set(Counter(e.event_id for e in model.log).values()) <= {1}, "nothing is published twice"
    assert {(e.group_id, e.index) for e in launches} == places
    for place in places:
        mine = [e for e in launches if (e.group_id, e.index) == place]
        assert [e.attempt for e in mine] == list(range(len(mine)))
        assert len(mine) <= ATTEMPTS_MAX
        *before, last = mine
        assert all(ends[e.execution_id].status == "lost" for e in before)
        assert last.execution_id in ends
        scores = [e for e in model.log if isinstance(e, ExecutionScored)]
        assert [e for e in scores if e.execution_id == last.execution_id]
        if ends[last.execution_id].status == "lost":
            assert len(mine) == ATTEMPTS_MAX
    assert model.launching.unassessed() == []
    assert folded(model.log).next(10) == folded(model.log).live() == []


@settings(max_examples=40, deadline=None)
@given(data=st.data(), groups=groups())
def test_repeats_and_the_order_of_topics_change_nothing(data, groups):
    model = Model(groups, 3)
    for _ in range(data.draw(st.integers(0, 20))):
        model.step(data.draw)
    log = model.log
    order = data.draw(st.permutations(["groups", "executions", "scores"]))
    by_topic = sorted(log, key=lambda event: order.index(event.TOPIC))
    twice = [e for event in log for e in (event, event)]
    for other in (by_topic, twice, log + log):
        again = folded(other)
        for ask in (lambda x: x.next(50), Launching.live, Launching.unassessed):
            assert ask(again) == ask(folded(log))


def test_oldest_first_by_version_then_time():
    events = [dispatched(5, 1, version=2, time_us=1), dispatched(6, 2, version=1, time_us=9)]
    launching = folded([*events, dispatched(7, 1, version=1, time_us=3)])
    assert [x.execution_id for x in launching.next(9)] == ["g7.0", "g6.0", "g6.1", "g5.0"]
    assert [x.execution_id for x in launching.next(2)] == ["g7.0", "g6.0"]
    assert launching.next(0) == []
    assert launching.next(1)[0].task == "task 7"


def test_a_lost_place_is_launched_again_before_younger_ones():
    launching = folded([dispatched(1, 2), dispatched(2, 1)])
    first = launching.next(1)[0]
    launching.apply(launched(first))
    for event in launching.lost(first, "gone", evaluator="e", now_us=0):
        launching.apply(event)
    assert [x.execution_id for x in launching.next(9)] == ["g1.0r1", "g1.1", "g2.0"]


def test_the_last_attempt_lost_is_missing():
    launching = folded([dispatched(1, 1)], attempts_max=1)
    only = launching.next(1)[0]
    launching.apply(launched(only))
    ended, missing = launching.lost(only, "the proxy went", evaluator="courier", now_us=7)
    launching.apply(ended)
    assert launching.unassessed() == [only]
    assert missing.event_id == "g1.0:scored:courier:0"
    assert missing.assessment == "missing"
    assert (
        missing.detail == "each of rollout.attempts_max = 1 launches was lost; the last one: the proxy went"
    )
    launching.apply(missing)
    assert launching.unassessed() == launching.next(1) == launching.live() == []


def test_a_score_of_a_lost_execution_does_not_close_its_place():
    """The score reached the log and the end did not: two topics, one broker that failed in between."""
    launching = folded([dispatched(1, 1)], attempts_max=1)
    only = launching.next(1)[0]
    for event in (launched(only), scored(only)):
        launching.apply(event)
    assert launching.live() == [only]
    events = heal(launching, evaluator="e", now_us=0)
    assert [e.event_id for e in events] == ["g1.0:finished", "g1.0:scored:e:1"]
    for event in events:
        launching.apply(event)
    assert launching.unassessed() == launching.live() == launching.next(1) == []


def test_attempts_max_is_checked():
    with pytest.raises(ValueError, match="attempts_max is 0, at least 1"):
        Launching(0)
