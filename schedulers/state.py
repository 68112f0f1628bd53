"""The state of a run: a fold over the light topics of its log.

    DISPATCHED --group.ready--> READY --group.claimed--> CLAIMED --group.consumed--> CONSUMED

A restarted controller that folds the same events reaches the same state and takes the same next
decision.  Token topics are never read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from lake.events import (
    Event,
    ExecutionFinished,
    ExecutionLaunched,
    ExecutionScored,
    GroupClaimed,
    GroupConsumed,
    GroupDispatched,
    GroupReady,
    PolicyPublished,
    RunStarted,
    StepCommitted,
)

TOPICS = ("groups", "executions", "scores", "policy")


@dataclass
class Step:
    """What the live table shows of a step."""

    step: int
    score: float | None
    staleness: float
    loss: float
    tokens: int
    targets: int
    digest: str
    at_us: int


@dataclass
class State:
    """Counters and sets of a run; `apply` takes each event once, whatever the order between topics."""

    started: bool = False
    published_version: int = -1
    boundary: int = -1
    groups: dict[str, GroupDispatched] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)
    consumed: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    terminal: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    first_us: int = 0
    last_us: int = 0

    @property
    def dispatched(self) -> int:
        """Executions handed out: places of groups."""
        return sum(g.size for g in self.groups.values())

    @property
    def waterlevel(self) -> int:
        """w = dispatched - finished executions, queued ones included."""
        return self.dispatched - len(self.terminal)

    @property
    def groups_ready(self) -> int:
        """Groups that are ready and not claimed."""
        return len(self.ready - self.claimed - self.consumed)

    def apply(self, event: Event) -> None:
        self.first_us = self.first_us or event.time_us
        self.last_us = max(self.last_us, event.time_us)
        match event:
            case RunStarted():
                self.started = True
            case PolicyPublished():
                if event.policy_version > self.published_version:
                    self.published_version, self.boundary = event.policy_version, event.boundary
            case GroupDispatched():
                self.groups.setdefault(event.group_id, event)
            case GroupReady():
                self.ready.add(event.group_id)
            case GroupClaimed():
                self.claimed.add(event.group_id)
            case GroupConsumed():
                self.consumed.add(event.group_id)
            case StepCommitted():
                self._commit(event)
            case _:
                self._execution(event)

    def _execution(self, event: Event) -> None:
        """An execution that was lost is terminal only once its place is given up with a score."""
        match event:
            case ExecutionLaunched():
                if event.execution_id not in self.terminal and event.execution_id not in self.lost:
                    self.live.add(event.execution_id)
            case ExecutionFinished():
                self.live.discard(event.execution_id)
                (self.lost if event.status == "lost" else self.terminal).add(event.execution_id)
            case ExecutionScored():
                if event.execution_id in self.lost:
                    self.terminal.add(event.execution_id)
            case _:
                pass

    def _commit(self, event: StepCommitted) -> None:
        if any(s.step == event.step for s in self.steps):
            return
        statistics = msgspec.json.decode(event.statistics)
        self.steps.append(
            Step(
                step=event.step,
                score=statistics.get("score_mean"),
                staleness=statistics.get("staleness_mean", 0.0),
                loss=event.loss,
                tokens=event.tokens,
                targets=event.targets,
                digest=event.digest,
                at_us=event.time_us,
            )
        )
