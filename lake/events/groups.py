"""Topics `groups`, `executions`, `scores`: from the task that is handed out to the step that consumed it."""

from __future__ import annotations

import math

from lake.events.base import ASSESSMENTS, STATUSES, Event, EventError, Int, one_of


# ------------------------------------------------------------------------------------ groups
class GroupDispatched(Event, kw_only=True, frozen=True):
    """A task was handed out, to be executed `size` times.  `task` is the task as JSON text."""

    TYPE = "group.dispatched"
    TOPIC = "groups"
    group_id: str
    task: str
    size: Int
    policy_version: Int
    boundary: Int

    @property
    def event_id(self) -> str:
        return f"{self.group_id}:dispatched"

    def check_shape(self) -> None:
        if self.size < 1:
            raise EventError(f"{self.event_id}: size is {self.size}, at least 1 is needed")


class GroupReady(Event, kw_only=True, frozen=True):
    """All executions of a group are terminal and assessed; its derived rows lie in the lake.

    `scores_end` is the end of the scores partition that was read: the same scores, the same rows.
    `digest` is the sha256 of the derived rows, so that a replay can prove it derived the same.
    """

    TYPE = "group.ready"
    TOPIC = "groups"
    group_id: str
    set_name: str
    scores_end: Int
    tokens: Int
    targets: Int
    executions_valid: Int
    digest: str

    @property
    def event_id(self) -> str:
        return f"{self.group_id}:ready"


class GroupClaimed(Event, kw_only=True, frozen=True):
    """A trainer started on a group.  A claim without a plan is void when that trainer dies."""

    TYPE = "group.claimed"
    TOPIC = "groups"
    group_id: str
    step: Int
    claimed_by: str

    @property
    def event_id(self) -> str:
        return f"{self.group_id}:claimed:{self.step}:{self.claimed_by}"


class GroupConsumed(Event, kw_only=True, frozen=True):
    """A committed step trained on a group.  `policy_version` is the version the step began with."""

    TYPE = "group.consumed"
    TOPIC = "groups"
    group_id: str
    step: Int
    policy_version: Int

    @property
    def event_id(self) -> str:
        return f"{self.group_id}:consumed"


# -------------------------------------------------------------------------------- executions
class ExecutionLaunched(Event, kw_only=True, frozen=True):
    """A harness was started.  `index` is the place in the group, `attempt` counts relaunches of it."""

    TYPE = "execution.launched"
    TOPIC = "executions"
    group_id: str
    execution_id: str
    index: Int
    attempt: Int = 0
    cell: str = ""

    @property
    def event_id(self) -> str:
        return f"{self.execution_id}:launched"


class ExecutionFinished(Event, kw_only=True, frozen=True):
    """A harness ended.  `calls` is the number of calls captured: their call ids are 0..calls-1.

    Status `lost`: the run itself went away under the execution; its place is launched again under
    another execution id, and its calls are never targets.
    """

    TYPE = "execution.finished"
    TOPIC = "executions"
    group_id: str
    execution_id: str
    status: str
    calls: Int
    detail: str = ""

    @property
    def event_id(self) -> str:
        return f"{self.execution_id}:finished"

    def check_shape(self) -> None:
        one_of(self, "status", self.status, STATUSES)
        if self.calls < 0:
            raise EventError(f"{self.event_id}: calls is {self.calls}, at least 0 is needed")


class ReplyUndelivered(Event, kw_only=True, frozen=True):
    """The answer of a recorded call did not reach the harness after all: it is never a target."""

    TYPE = "reply.undelivered"
    TOPIC = "executions"
    group_id: str
    execution_id: str
    call_id: Int

    @property
    def event_id(self) -> str:
        return f"{self.execution_id}:undelivered:{self.call_id}"


class ExecutionScored(Event, kw_only=True, frozen=True):
    """An assessment.  `value` is a number for `scored` and `partial`, None for `missing`."""

    TYPE = "execution.scored"
    TOPIC = "scores"
    group_id: str
    execution_id: str
    assessment: str
    value: float | None
    evaluator: str
    version: Int = 0
    detail: str = ""  # free text or JSON of the evaluator

    @property
    def event_id(self) -> str:
        return f"{self.execution_id}:scored:{self.evaluator}:{self.version}"

    def check_shape(self) -> None:
        one_of(self, "assessment", self.assessment, ASSESSMENTS)
        if (self.value is None) != (self.assessment == "missing"):
            raise EventError(
                f"{self.event_id}: {self.assessment} with value {self.value}; "
                "missing has no value, the others have one"
            )
        if self.value is not None and not math.isfinite(self.value):
            raise EventError(f"{self.event_id}: value is {self.value}, a finite number is needed")
