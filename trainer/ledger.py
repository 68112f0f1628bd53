"""What the log says of groups and steps: a fold over `groups` and `policy`.

    DISPATCHED --group.ready--> READY --group.claimed--> CLAIMED --step.committed--> CONSUMED

A claim lives in the trainer that made it; only a plan outlives its death.  A step is planned, then
committed; a plan without a commit is done again exactly as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lake.events import (
    Event,
    GroupConsumed,
    GroupDispatched,
    GroupReady,
    PolicyPublished,
    StepCommitted,
    StepPlanned,
)
from lake.follow import Follower
from lake.log import Log

TOPICS = ("groups", "policy")


@dataclass
class Ledger:
    """Groups and steps as the log tells them; each event may come twice."""

    dispatched: dict[str, GroupDispatched] = field(default_factory=dict)
    ready: dict[str, GroupReady] = field(default_factory=dict)
    consumed: dict[str, int] = field(default_factory=dict)  # group -> step
    announced: set[str] = field(default_factory=set)  # group.consumed is in the log
    planned: dict[int, StepPlanned] = field(default_factory=dict)
    committed: dict[int, StepCommitted] = field(default_factory=dict)
    published: dict[int, PolicyPublished] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        match event:
            case GroupDispatched():
                self.dispatched.setdefault(event.group_id, event)
            case GroupReady():
                self.ready.setdefault(event.group_id, event)
            case GroupConsumed():
                self.announced.add(event.group_id)
            case StepPlanned():
                self.planned.setdefault(event.step, event)
            case StepCommitted():
                self.committed.setdefault(event.step, event)
                for group in self.planned[event.step].groups:
                    self.consumed[group] = event.step
            case PolicyPublished():
                self.published.setdefault(event.policy_version, event)
            case _:
                pass

    @property
    def next_step(self) -> int:
        """The first step that is not committed."""
        return max(self.committed, default=-1) + 1

    def next_groups(self, claimed: frozenset[str] | set[str]) -> list[str]:
        """Ready groups that nobody has, oldest policy version first, then oldest ready."""
        free = [g for g in self.ready if g not in self.consumed and g not in claimed and g in self.dispatched]
        return sorted(free, key=lambda g: (self.dispatched[g].policy_version, self.ready[g].time_us, g))

    def groups(self, until: int) -> list[str]:
        """The groups of the planned steps before `until`, in the order of training."""
        return [g for step in sorted(self.planned) if step < until for g in self.planned[step].groups]

    def staleness(self, group: str, version: int) -> int:
        """d = the trainer's version when the group is consumed minus the version at its dispatch."""
        return version - self.dispatched[group].policy_version


class LedgerFollower:
    """Reads the ledger's topics of a log; `follow` takes in what is new."""

    def __init__(self, log: Log) -> None:
        self.ledger = Ledger()
        self._follower = Follower(log, TOPICS)

    def follow(self, wait_s: float) -> None:
        """Take in what is new, waiting for at most `wait_s`."""
        for event in self._follower.poll(wait_s)[1]:
            self.ledger.apply(event)

    def catch_up(self) -> Ledger:
        """The ledger as of the log's end when this follower was made."""
        for event in self._follower.catch_up():
            self.ledger.apply(event)
        return self.ledger

    def close(self) -> None:
        self._follower.close()
