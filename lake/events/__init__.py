"""The event catalogue: what happened in a run, each event once and for all.

Every event knows its topic, its key (the group id, or what it supersedes) and its deterministic event id, by
which everything downstream removes duplicates.  Token ids are little-endian int32 bytes, log-probabilities
little-endian float32 bytes.  `lake.wire` turns events into records and back.

    groups    from the task that is handed out to the step that consumed it
    calls     what the policy sampled, and what tools answered
    policy    steps, published weights, processes, decisions
"""

from __future__ import annotations

from lake.events.base import (
    ASSESSMENTS,
    PLACE_BYTES,
    RELATIONS,
    ROLES,
    STATUSES,
    TOPICS,
    TOPICS_BY_GROUP,
    TOPICS_SINGLE,
    TRAINED_ROLES,
    TREE_MAX,
    Event,
    EventError,
    Int,
)
from lake.events.calls import (
    ModelCalled,
    ToolCalled,
    VersionSpan,
)
from lake.events.groups import (
    ExecutionFinished,
    ExecutionLaunched,
    ExecutionScored,
    GroupClaimed,
    GroupConsumed,
    GroupDispatched,
    GroupReady,
    ReplyUndelivered,
)
from lake.events.policy import (
    CellEvent,
    PolicyPublished,
    RunStarted,
    ScheduleDecided,
    StepCommitted,
    StepPlanned,
)
from lake.events.tokens import (
    are_logprobs,
    ids_from_bytes,
    ids_to_bytes,
    logprobs_from_bytes,
    logprobs_to_bytes,
)

__all__ = [
    "ASSESSMENTS",
    "CATALOGUE",
    "PLACE_BYTES",
    "RELATIONS",
    "ROLES",
    "STATUSES",
    "TOPICS",
    "TOPICS_BY_GROUP",
    "TOPICS_SINGLE",
    "TRAINED_ROLES",
    "TREE_MAX",
    "CellEvent",
    "Event",
    "EventError",
    "ExecutionFinished",
    "ExecutionLaunched",
    "ExecutionScored",
    "GroupClaimed",
    "GroupConsumed",
    "GroupDispatched",
    "GroupReady",
    "Int",
    "ModelCalled",
    "PolicyPublished",
    "ReplyUndelivered",
    "RunStarted",
    "ScheduleDecided",
    "StepCommitted",
    "StepPlanned",
    "ToolCalled",
    "VersionSpan",
    "are_logprobs",
    "ids_from_bytes",
    "ids_to_bytes",
    "logprobs_from_bytes",
    "logprobs_to_bytes",
]

CATALOGUE: dict[str, type[Event]] = {
    c.TYPE: c
    for c in (
        GroupDispatched, GroupReady, GroupClaimed, GroupConsumed, ExecutionLaunched,
        ExecutionFinished, ReplyUndelivered, ExecutionScored, ModelCalled, ToolCalled, RunStarted,
        StepPlanned, StepCommitted, PolicyPublished, CellEvent, ScheduleDecided,
    )
}  # fmt: skip
