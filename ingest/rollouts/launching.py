"""Which execution to launch next: a fold over the log, and nothing else.

A *place* is one of the `size` executions that a group asks for.  Its life:

    WAITING --execution.launched--> LIVE --execution.finished--> UNASSESSED --execution.scored--> CLOSED
       ^                              |
       +------------- lost -----------+   as the next attempt, while there are attempts left;
                                          after the last one it is UNASSESSED, and `missing` closes it

Applying an event again changes nothing, and so does any order of topics: only the order of
`executions` within a group counts, and that is the order of its partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from lake.events import Event, ExecutionFinished, ExecutionLaunched, ExecutionScored, GroupDispatched

TOPICS = ("groups", "executions", "scores")
OUTSIDE = -1
"""The boundary of a group that nobody of the run handed out: its executions are started elsewhere."""


class State(Enum):
    """Where a place stands."""

    WAITING = "waiting"
    LIVE = "live"
    UNASSESSED = "unassessed"
    CLOSED = "closed"


@dataclass(frozen=True, order=True)
class Launch:
    """One attempt at a place.  Launches sort oldest first: policy version, dispatch, group, index."""

    policy_version: int
    dispatched_us: int
    group_id: str
    index: int
    attempt: int
    task: str = field(compare=False)

    @property
    def execution_id(self) -> str:
        """`GROUP.INDEX` at first, `GROUP.INDEXrATTEMPT` for a place that is launched again."""
        again = f"r{self.attempt}" if self.attempt else ""
        return f"{self.group_id}.{self.index}{again}"


@dataclass
class _Place:
    attempt: int = -1  # the latest one launched
    execution_id: str = ""
    status: str = ""  # of the latest attempt, once it is finished


@dataclass
class _Group:
    dispatched: GroupDispatched | None = None
    places: dict[int, _Place] = field(default_factory=dict)
    index_of: dict[str, int] = field(default_factory=dict)  # execution id -> place
    scores: dict[str, ExecutionScored] = field(default_factory=dict)  # the latest, by execution id


class Launching:
    """The fold.  `attempts_max` (at least 1) launches of one place at most."""

    def __init__(self, attempts_max: int) -> None:
        if attempts_max < 1:
            raise ValueError(f"attempts_max is {attempts_max}, at least 1 is needed")
        self._attempts_max = attempts_max
        self._groups: dict[str, _Group] = {}
        self._done: set[str] = set()  # groups all of whose places are closed: nothing else is kept
        self._at: dict[State, dict[tuple[str, int], Launch]] = {s: {} for s in State if s != State.CLOSED}

    def apply(self, event: Event) -> None:
        """Take in one event; those of other types change nothing."""
        if not isinstance(event, GroupDispatched | ExecutionLaunched | ExecutionFinished | ExecutionScored):
            return
        if event.group_id in self._done:
            return
        if isinstance(event, GroupDispatched) and event.boundary == OUTSIDE:
            self._groups.pop(event.group_id, None)
            self._done.add(event.group_id)  # nothing of it is ours to launch, to lose or to assess
            return
        group = self._groups.setdefault(event.group_id, _Group())
        if isinstance(event, GroupDispatched):
            if group.dispatched is None:
                group.dispatched = event
                for index in range(event.size):
                    self._settle(event.group_id, group, index)
            return
        if isinstance(event, ExecutionLaunched):
            _launched(group, event)
        elif isinstance(event, ExecutionFinished):
            _finished(group, event)
        else:
            _scored(group, event)
        place = group.index_of.get(event.execution_id)
        if place is not None:
            self._settle(event.group_id, group, place)

    def _state(self, group: _Group, place: _Place) -> State:
        if place.attempt < 0:
            return State.WAITING
        if not place.status:
            return State.LIVE
        lost = place.status == "lost"
        if lost and place.attempt + 1 < self._attempts_max:
            return State.WAITING
        score = group.scores.get(place.execution_id)
        if score is None or (lost and score.assessment != "missing"):
            return State.UNASSESSED
        return State.CLOSED

    def _settle(self, group_id: str, group: _Group, index: int) -> None:
        """File a place under its state; a group that is closed altogether is forgotten."""
        dispatched = group.dispatched
        if dispatched is None or index >= dispatched.size:
            return
        place = group.places.setdefault(index, _Place())
        state, key = self._state(group, place), (group_id, index)
        for launches in self._at.values():
            launches.pop(key, None)
        if state is State.CLOSED:
            others = (self._state(group, group.places.get(i, _Place())) for i in range(dispatched.size))
            if all(other is State.CLOSED for other in others):
                self._groups.pop(group_id, None)
                self._done.add(group_id)
            return
        self._at[state][key] = Launch(
            dispatched.policy_version,
            dispatched.time_us,
            group_id,
            index,
            place.attempt + (state is State.WAITING),
            dispatched.task,
        )

    def next(self, slots: int) -> list[Launch]:
        """What to launch now that `slots` executions may start, oldest first.  Changes nothing."""
        return heapq.nsmallest(slots, self._at[State.WAITING].values())

    def live(self) -> list[Launch]:
        """Launched and not finished, oldest first."""
        return sorted(self._at[State.LIVE].values())

    def unassessed(self) -> list[Launch]:
        """Ended for good and without a valid score, oldest first."""
        return sorted(self._at[State.UNASSESSED].values())

    def lost(self, launch: Launch, detail: str, *, evaluator: str, now_us: int) -> list[Event]:
        """The events that end a live attempt which the run itself lost; after the last one, `missing`."""
        finished = ExecutionFinished(
            time_us=now_us,
            group_id=launch.group_id,
            execution_id=launch.execution_id,
            status="lost",
            calls=0,
            detail=detail,
        )
        if launch.attempt + 1 < self._attempts_max:
            return [finished]
        why = f"each of rollout.attempts_max = {self._attempts_max} launches was lost; the last one: {detail}"
        return [finished, self.missing(launch, why, evaluator=evaluator, now_us=now_us)]

    def missing(self, launch: Launch, detail: str, *, evaluator: str, now_us: int) -> ExecutionScored:
        """The assessment of an attempt whose score nobody knows, as a later version of what there is."""
        group = self._groups.get(launch.group_id)
        before = group.scores.get(launch.execution_id) if group else None
        return ExecutionScored(
            time_us=now_us,
            group_id=launch.group_id,
            execution_id=launch.execution_id,
            assessment="missing",
            value=None,
            evaluator=evaluator,
            version=before.version + 1 if before else 0,
            detail=detail,
        )


def _launched(group: _Group, event: ExecutionLaunched) -> None:
    place = group.places.setdefault(event.index, _Place())
    group.index_of[event.execution_id] = event.index
    if event.attempt > place.attempt:
        place.attempt, place.execution_id, place.status = event.attempt, event.execution_id, ""


def _finished(group: _Group, event: ExecutionFinished) -> None:
    place = group.places.get(group.index_of.get(event.execution_id, -1))
    if place is not None and place.execution_id == event.execution_id:
        place.status = place.status or event.status


def _scored(group: _Group, event: ExecutionScored) -> None:
    before = group.scores.get(event.execution_id)
    if before is None or event.version > before.version:
        group.scores[event.execution_id] = event


def heal(launching: Launching, *, evaluator: str, now_us: int) -> Sequence[Event]:
    """What a runner that starts owes the log: the runner before it is gone, and its executions with it.

    Everything live is lost; everything that ended without a score is `missing`.
    """
    events: list[Event] = []
    for launch in launching.live():
        events += launching.lost(launch, "the runner ended under it", evaluator=evaluator, now_us=now_us)
    for launch in launching.unassessed():
        why = "the runner ended before the score was known to be in the log"
        events.append(launching.missing(launch, why, evaluator=evaluator, now_us=now_us))
    return events
