"""The event catalogue: what happened in a run, each event once and for all.

Every event knows its topic, its key (the group id, or what it supersedes) and its deterministic event id, by
which everything downstream removes duplicates.  Token ids are little-endian int32 bytes, log-probabilities
little-endian float32 bytes.  `lake.wire` turns events into records and back.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

TOPICS_BY_GROUP = ("calls", "tools", "executions", "scores", "groups")  # co-partitioned
TOPICS_SINGLE = ("policy", "cells")  # one partition each
TOPICS = TOPICS_BY_GROUP + TOPICS_SINGLE
ROLES = ("main", "main-summary", "sub-agent", "sub-agent-summary", "auxiliary")
TRAINED_ROLES = ROLES[:4]  # an auxiliary call is never trained
PLACE_BYTES = 16  # of a digest that stands for the messages of a call
TREE_MAX = 2**31 - 1  # of a call's id and of a depth: the id of a node is made of both
RELATIONS = ("extends", "branches", "restarts")
STATUSES = ("completed", "harness_timeout", "overall_timeout", "crashed", "lost")
ASSESSMENTS = ("scored", "partial", "missing")

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # what a column of a table holds


class EventError(ValueError):
    """An event that cannot be trusted: which, what is wrong with it, and the bound it broke."""


def ids_to_bytes(ids: Any) -> bytes:
    """Token ids (any integer sequence or array, each in [0, 2**31)) as little-endian int32 bytes."""
    wide = np.asarray(ids, dtype=np.int64)
    if wide.size and np.maximum.reduce(wide.view(np.uint64), axis=None) > 0x7FFFFFFF:  # one below 0 is more
        raise EventError(f"token id outside [0, 2**31): {int(wide.min())}..{int(wide.max())}")
    return wide.astype("<i4").tobytes()


def logprobs_to_bytes(logprobs: Any) -> bytes:
    """Log-probabilities (any float sequence or array) as little-endian float32 bytes."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def ids_from_bytes(data: bytes) -> np.ndarray:
    """int32 array (n,), a view of the bytes."""
    return np.frombuffer(data, dtype="<i4")


def logprobs_from_bytes(data: bytes) -> np.ndarray:
    """float32 array (n,), a view of the bytes."""
    return np.frombuffer(data, dtype="<f4")


_ID, _LOGPROB = np.dtype("<i4"), np.dtype("<f4")
_FEW_BYTES = 16 << 10
_LOGPROB_MAX = 1e-3  # a log-probability of 1 may come out a little above 0


def _negative(ids: bytes) -> bool:
    """Whether one of these int32 is below 0.  Few are looked at faster without numpy: 2 us for 2,000."""
    if len(ids) <= _FEW_BYTES:
        return not ids[3::4].isascii()  # the sign stands in the highest byte
    return bool(np.minimum.reduce(np.frombuffer(ids, _ID)) < 0)


def are_logprobs(data: bytes | npt.NDArray[np.float32]) -> bool:
    """Whether all of these float32 are finite and none is above 0; two passes, which both notice a NaN."""
    values = np.frombuffer(data, _LOGPROB) if isinstance(data, bytes) else data
    if not values.size:
        return True
    return bool(np.maximum.reduce(values) <= _LOGPROB_MAX and np.minimum.reduce(values) > -math.inf)


class Event(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, forbid_unknown_fields=True
):
    """What every event has: when it happened, in microseconds since 1970 (UTC).

    A field that is added has a default, and a new SCHEMA_VERSION: a reader refuses what it does not know.
    """

    TYPE: ClassVar[str]
    TOPIC: ClassVar[str]
    time_us: Int

    @property
    def key(self) -> str:
        """The group id, so that one partition holds whole groups; without one the event id.

        Two records of a compacted topic (policy, cells) with one key: the newer supersedes the older.
        """
        group: str | None = getattr(self, "group_id", None)
        return self.event_id if group is None else group

    @property
    def event_id(self) -> str:
        raise NotImplementedError

    def check(self) -> None:
        """Raise EventError where the fields contradict each other."""
        self.check_shape()
        self.check_tokens()

    def check_shape(self) -> None:
        """The part of `check` that looks at no token."""

    def check_tokens(self) -> None:
        """The part of `check` that looks at tokens; of many events at once: `lake.tables.are_sound`."""


def _one_of(event: Event, name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise EventError(f"{event.event_id}: {name} is {value!r}, not one of {', '.join(allowed)}")


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
        _one_of(self, "status", self.status, STATUSES)
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
        _one_of(self, "assessment", self.assessment, ASSESSMENTS)
        if (self.value is None) != (self.assessment == "missing"):
            raise EventError(
                f"{self.event_id}: {self.assessment} with value {self.value}; "
                "missing has no value, the others have one"
            )
        if self.value is not None and not math.isfinite(self.value):
            raise EventError(f"{self.event_id}: value is {self.value}, a finite number is needed")


# ----------------------------------------------------------------------------- calls and tools
class VersionSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Output tokens [start, end) were sampled by this policy version; None: the engine did not say."""

    version: Int | None
    start: Int
    end: Int


class ModelCalled(Event, kw_only=True, frozen=True):
    """One request answered by the engine, delta coded.

    The call's whole sequence is the first `shared_len` tokens of the parent's whole sequence, then
    `context_ids`, then `output_ids`.  The parent owns token `shared_len - 1`; without a parent
    `shared_len` is 0.  `output_logprobs` has one float32 an output id, or is None (never trained).
    """

    TYPE = "model.called"
    TOPIC = "calls"
    group_id: str
    execution_id: str
    call_id: Int
    role: str
    parent_call_id: Int | None
    shared_len: Int
    context_ids: bytes
    output_ids: bytes
    output_logprobs: bytes | None
    relation: str
    difference: str = ""  # why the call does not extend: what differed first
    retry_of: Int | None = None
    delivered: bool = True
    finish_reason: str = "stop"
    spans: tuple[VersionSpan, ...] = ()
    engine: str = ""
    temperature: float = 1.0
    sampling: str = "{}"  # the sampling parameters as JSON
    cached_tokens: Int | None = None
    started_us: Int = 0
    finished_us: Int = 0
    place: bytes = b""  # a digest of the messages that were asked, or none

    @property
    def event_id(self) -> str:
        return f"{self.execution_id}:{self.call_id}"

    @property
    def n_context(self) -> int:
        return len(self.context_ids) // 4

    @property
    def n_output(self) -> int:
        return len(self.output_ids) // 4

    def check_shape(self) -> None:
        _one_of(self, "role", self.role, ROLES)
        _one_of(self, "relation", self.relation, RELATIONS)
        for name, data in (("context_ids", self.context_ids), ("output_ids", self.output_ids)):
            if len(data) % 4:
                raise EventError(f"{self.event_id}: {name} has {len(data)} bytes, not a multiple of 4")
        if self.output_logprobs is not None and len(self.output_logprobs) != len(self.output_ids):
            given = f"{len(self.output_logprobs) / 4:g} log-probabilities"
            raise EventError(f"{self.event_id}: {given} for {self.n_output} output ids; one each is needed")
        end = self.shared_len + self.n_context + self.n_output
        if min(self.call_id, self.shared_len) < 0 or max(self.call_id, end) > TREE_MAX:
            given = f"call_id {self.call_id}, shared_len {self.shared_len}, {end} tokens"
            raise EventError(f"{self.event_id}: {given}; a tree counts from 0 to {TREE_MAX}")
        if (self.parent_call_id is None) != (self.shared_len == 0):
            given = f"parent {self.parent_call_id} with shared_len {self.shared_len}"
            raise EventError(f"{self.event_id}: {given}; a parent and a shared prefix come together")
        if self.parent_call_id is not None and not 0 <= self.parent_call_id < self.call_id:
            raise EventError(f"{self.event_id}: parent {self.parent_call_id} is not an earlier call")
        if len(self.place) not in (0, PLACE_BYTES):
            raise EventError(f"{self.event_id}: place has {len(self.place)} bytes, not {PLACE_BYTES} or none")
        at = 0
        for span in self.spans:
            if span.start != at or span.end < span.start:
                raise EventError(f"{self.event_id}: version spans do not follow each other")
            at = span.end
        if self.spans and at != self.n_output:
            raise EventError(f"{self.event_id}: version spans cover {at} of {self.n_output} tokens")

    def check_tokens(self) -> None:
        for name, data in (("context_ids", self.context_ids), ("output_ids", self.output_ids)):
            if _negative(data):
                raise EventError(f"{self.event_id}: {name} holds a negative token id")
        if self.output_logprobs is not None and not are_logprobs(self.output_logprobs):
            raise EventError(f"{self.event_id}: a log-probability is not finite or above 0")


class ToolCalled(Event, kw_only=True, frozen=True):
    """One tool call of a harness: what the model wrote, byte for byte, and what came back."""

    TYPE = "tool.called"
    TOPIC = "tools"
    group_id: str
    execution_id: str
    tool_call_id: str
    call_id: Int | None  # the model call that asked for it
    name: str
    arguments: bytes
    result: bytes
    started_us: Int
    stopped_us: Int
    status: str = "ok"  # ok | error | unknown

    @property
    def event_id(self) -> str:
        return f"{self.execution_id}:tool:{self.tool_call_id}"


# ------------------------------------------------------------------------------ policy, cells
class RunStarted(Event, kw_only=True, frozen=True):
    """The first event of a run: its resolved configuration as JSON, enough to replay it."""

    TYPE = "run.started"
    TOPIC = "policy"
    run: str
    config: str
    software: str  # versions, as JSON

    @property
    def event_id(self) -> str:
        return f"{self.run}:started"


class StepPlanned(Event, kw_only=True, frozen=True):
    """Everything that fixes a step, written before the weights move.

    `micro_steps[k]` is the number of micro-steps that groups[k] is cut into.
    """

    TYPE = "step.planned"
    TOPIC = "policy"
    step: Int
    policy_version: Int
    groups: tuple[str, ...]
    digests: tuple[str, ...]  # of the derived rows, one a group
    micro_steps: tuple[Int, ...]
    set_name: str
    seed: Int
    learning_rate: float

    @property
    def event_id(self) -> str:
        return f"step:{self.step}:planned"


class StepCommitted(Event, kw_only=True, frozen=True):
    """The weights moved.  `digest` is the sha256 of the new weights, `statistics` is JSON."""

    TYPE = "step.committed"
    TOPIC = "policy"
    step: Int
    policy_version: Int  # the new one
    digest: str
    checkpoint: str
    loss: float
    gradient_norm: float
    executions: Int  # E: valid executions with targets
    tokens: Int  # tokens that went through the model
    targets: Int
    statistics: str = "{}"

    @property
    def event_id(self) -> str:
        return f"step:{self.step}:committed"


class PolicyPublished(Event, kw_only=True, frozen=True):
    """The engines serve these weights from now on."""

    TYPE = "policy.published"
    TOPIC = "policy"
    policy_version: Int
    boundary: Int
    weights: str
    digest: str

    @property
    def event_id(self) -> str:
        return f"policy:{self.policy_version}:published"


class CellEvent(Event, kw_only=True, frozen=True):
    """A process of a run changed its state: `started`, `stopped`, `died`, `role`, `heartbeat`."""

    TYPE = "cell.changed"
    TOPIC = "cells"
    cell: str
    session: str
    change: str
    detail: str = ""

    @property
    def key(self) -> str:
        """The cell's for a heartbeat: only its newest says anything."""
        return f"cell:{self.cell}:heartbeat" if self.change == "heartbeat" else self.event_id

    @property
    def event_id(self) -> str:
        return f"cell:{self.session}:{self.cell}:{self.change}:{self.time_us}"


class ScheduleDecided(Event, kw_only=True, frozen=True):
    """A decision of the scheduler, with the numbers it was taken on (JSON)."""

    TYPE = "schedule.decided"
    TOPIC = "cells"
    decision: str
    number: Int
    numbers: str

    @property
    def event_id(self) -> str:
        return f"decision:{self.decision}:{self.number}"


CATALOGUE: dict[str, type[Event]] = {
    c.TYPE: c
    for c in (
        GroupDispatched, GroupReady, GroupClaimed, GroupConsumed, ExecutionLaunched,
        ExecutionFinished, ReplyUndelivered, ExecutionScored, ModelCalled, ToolCalled, RunStarted,
        StepPlanned, StepCommitted, PolicyPublished, CellEvent, ScheduleDecided,
    )
}  # fmt: skip
