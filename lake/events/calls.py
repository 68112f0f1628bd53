"""Topics `calls`, `tools`: what the policy sampled for a harness, and what its tools answered."""

from __future__ import annotations

import re

import msgspec

from lake.events.base import PLACE_BYTES, RELATIONS, ROLES, TREE_MAX, Event, EventError, Int, one_of
from lake.events.tokens import any_negative, are_logprobs

_reference = re.compile("[0-9a-f]{64}:[1-9][0-9]{0,17}")


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
    experts: str = ""  # the routed experts, `sha256:bytes` of them in the blobs (lake.experts), or none

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
        one_of(self, "role", self.role, ROLES)
        one_of(self, "relation", self.relation, RELATIONS)
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
        if self.experts and not _reference.fullmatch(self.experts):
            given = f"experts is {self.experts[:100]!r}"
            raise EventError(f"{self.event_id}: {given}; a reference is `sha256:bytes`")
        at = 0
        for span in self.spans:
            if span.start != at or span.end < span.start:
                raise EventError(f"{self.event_id}: version spans do not follow each other")
            at = span.end
        if self.spans and at != self.n_output:
            raise EventError(f"{self.event_id}: version spans cover {at} of {self.n_output} tokens")

    def check_tokens(self) -> None:
        for name, data in (("context_ids", self.context_ids), ("output_ids", self.output_ids)):
            if any_negative(data):
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
