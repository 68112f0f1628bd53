r"""How far the groups of a run are: a fold over the light topics of its log, for people and for dispatch.

    DISPATCHED --its executions end and are assessed--> ASSESSED --group.ready--> READY
                                                            \--an audit names a row--> held back

Applying an event again changes nothing.  Tokens are never read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lake.events import (
    Event,
    ExecutionFinished,
    ExecutionLaunched,
    ExecutionScored,
    GroupDispatched,
    GroupReady,
)

TOPICS = ("groups", "executions", "scores")


@dataclass
class Known:
    """What the log says of one execution."""

    execution_id: str
    group_id: str = ""
    index: int = 0
    attempt: int = 0
    launched_us: int = 0
    finished_us: int = 0
    status: str = ""  # empty while it is live
    detail: str = ""
    calls: int = 0
    score: ExecutionScored | None = None  # the latest

    @property
    def is_settled(self) -> bool:
        """Ended and assessed; one that was lost only where it was given up."""
        if not self.status or self.score is None:
            return False
        return self.status != "lost" or self.score.assessment == "missing"


@dataclass
class Progress:
    """All groups and executions of a run."""

    groups: dict[str, GroupDispatched] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    executions: dict[str, Known] = field(default_factory=dict)
    _of: dict[str, list[Known]] = field(default_factory=dict)  # by group, once launched

    def apply(self, event: Event) -> None:
        """Take in one event; those of other types change nothing."""
        match event:
            case GroupDispatched():
                self.groups.setdefault(event.group_id, event)
            case GroupReady():
                self.ready.add(event.group_id)
            case ExecutionLaunched():
                known = self._known(event.execution_id)
                if not known.launched_us:
                    known.group_id, known.index, known.attempt = event.group_id, event.index, event.attempt
                    known.launched_us = event.time_us
                    self._of.setdefault(event.group_id, []).append(known)
            case ExecutionFinished():
                known = self._known(event.execution_id)
                if not known.status:
                    known.status, known.calls, known.detail = event.status, event.calls, event.detail
                    known.finished_us = event.time_us
            case ExecutionScored():
                known = self._known(event.execution_id)
                if known.score is None or event.version > known.score.version:
                    known.score = event
            case _:
                pass

    def _known(self, execution_id: str) -> Known:
        return self.executions.setdefault(execution_id, Known(execution_id))

    def of(self, group_id: str) -> list[Known]:
        """The executions of a group, by place and attempt."""
        return sorted(self._of.get(group_id, []), key=lambda e: (e.index, e.attempt))

    def live(self) -> list[Known]:
        """Launched and not ended, oldest first."""
        found = [e for e in self.executions.values() if e.launched_us and not e.status]
        return sorted(found, key=lambda e: (e.launched_us, e.execution_id))

    def settled(self) -> set[str]:
        """Groups each of whose places is settled: all that the lake still needs is in the log."""
        return {
            name
            for name, group in self.groups.items()
            if sum(execution.is_settled for execution in self._of.get(name, [])) >= group.size
        }

    def statuses(self) -> Counter[str]:
        """Ended executions by status."""
        return Counter(e.status for e in self.executions.values() if e.status)

    def assessments(self) -> Counter[str]:
        """Assessed executions by assessment; attempts that were lost are launched again, and not counted."""
        return Counter(e.score.assessment for e in self.executions.values() if e.score is not None)

    def scores(self) -> list[float]:
        """All values there are, partial ones too."""
        scored = (e.score for e in self.executions.values())
        return [s.value for s in scored if s is not None and s.value is not None]

    def calls(self) -> int:
        """Calls that ended executions reported."""
        return sum(e.calls for e in self.executions.values())
