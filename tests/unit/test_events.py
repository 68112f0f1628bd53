"""Every refusal of an event, by its sentence."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest

from lake.events import (
    CATALOGUE,
    TOPICS,
    TOPICS_BY_GROUP,
    Event,
    EventError,
    ExecutionFinished,
    ExecutionScored,
    GroupDispatched,
    ModelCalled,
    PolicyPublished,
    VersionSpan,
    ids_from_bytes,
    ids_to_bytes,
    logprobs_from_bytes,
    logprobs_to_bytes,
)
from lake.wire import RECORD_BYTES_MAX, SCHEMA_VERSION, Headers, decode, encode
from tests.support.events import ONE_OF_EACH, tool

BY_TYPE = {type(event): event for event in ONE_OF_EACH}


def changed(kind: type[Event], **fields: Any) -> Event:
    return msgspec.structs.replace(BY_TYPE[kind], **fields)


def test_every_event_has_a_topic_and_a_key_where_its_topic_is_partitioned() -> None:
    for kind in CATALOGUE.values():
        assert kind.TOPIC in TOPICS
        assert (BY_TYPE[kind].key == "g-1") == (kind.TOPIC in TOPICS_BY_GROUP)


def test_event_ids_tell_all_events_apart() -> None:
    assert len({event.event_id for event in ONE_OF_EACH}) == len(ONE_OF_EACH)


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        (GroupDispatched, {"size": 0}, "g-1:dispatched: size is 0, at least 1 is needed"),
        (ExecutionFinished, {"status": "done"}, "e-1:finished: status is 'done', not one of completed, "),
        (ExecutionFinished, {"calls": -1}, "e-1:finished: calls is -1, at least 0 is needed"),
        (
            ExecutionScored,
            {"assessment": "good"},
            "assessment is 'good', not one of scored, partial",
        ),
        (ExecutionScored, {"value": None}, "partial with value None; missing has no value"),
        (ExecutionScored, {"assessment": "missing"}, "missing with value 0.25; missing has no value"),
        (ExecutionScored, {"value": float("nan")}, "value is nan, a finite number is needed"),
        (ExecutionScored, {"value": float("inf")}, "value is inf, a finite number is needed"),
        (ModelCalled, {"role": "user"}, "e-1:1: role is 'user', not one of main, "),
        (ModelCalled, {"relation": "joins"}, "e-1:1: relation is 'joins', not one of extends, "),
        (ModelCalled, {"context_ids": b"12345"}, "context_ids has 5 bytes, not a multiple of 4"),
        (ModelCalled, {"output_ids": b"123"}, "output_ids has 3 bytes, not a multiple of 4"),
        (ModelCalled, {"context_ids": b"\xff\xff\xff\xff"}, "context_ids holds a negative token id"),
        (ModelCalled, {"output_ids": b"\0\0\0\x80" * 3}, "output_ids holds a negative token id"),
        (ModelCalled, {"output_logprobs": logprobs_to_bytes([-1.0])}, "1 log-probabilities for 3 output ids"),
        (ModelCalled, {"output_logprobs": logprobs_to_bytes([0.1] * 3)}, "is not finite or above 0"),
        (ModelCalled, {"output_logprobs": logprobs_to_bytes([-1, np.nan, -1])}, "is not finite or above 0"),
        (ModelCalled, {"output_logprobs": logprobs_to_bytes([-1, -np.inf, -1])}, "is not finite or above 0"),
        (ModelCalled, {"call_id": -1}, "e-1:-1: call_id -1, shared_len 5"),
        (ModelCalled, {"shared_len": -1}, "e-1:1: call_id 1, shared_len -1"),
        (ModelCalled, {"shared_len": 2**31 - 1}, "tokens; a tree counts from 0 to 2147483647"),
        (ModelCalled, {"call_id": 2**31}, "call_id 2147483648, "),
        (
            ModelCalled,
            {"parent_call_id": None},
            "parent None with shared_len 5; a parent and a",
        ),
        (ModelCalled, {"shared_len": 0}, "parent 0 with shared_len 0; a parent and a shared prefix"),
        (ModelCalled, {"parent_call_id": 1}, "parent 1 is not an earlier call"),
        (ModelCalled, {"parent_call_id": -1}, "parent -1 is not an earlier call"),
        (ModelCalled, {"spans": (VersionSpan(1, 0, 1), VersionSpan(1, 2, 3))}, "do not follow each other"),
        (ModelCalled, {"spans": (VersionSpan(1, 0, -1),)}, "do not follow each other"),
        (ModelCalled, {"spans": (VersionSpan(1, 0, 2),)}, "version spans cover 2 of 3 tokens"),
        (ModelCalled, {"place": b"12"}, "place has 2 bytes, not 16 or none"),
        (ModelCalled, {"experts": "../x:1"}, "experts is '../x:1'; a reference is `sha256:bytes`"),
        (ModelCalled, {"experts": "ab" * 32}, "a reference is `sha256:bytes`"),
        (PolicyPublished, {"took_us": -1}, "policy:4:published: took_us is -1, at least 0 is needed"),
        (PolicyPublished, {"readback": -0.5}, "readback is -0.5; finite, at least 0 is needed"),
        (PolicyPublished, {"readback": float("nan")}, "readback is nan; finite, at least 0 is needed"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    kind: type[Event], fields: dict[str, Any], sentence: str
) -> None:
    event = changed(kind, **fields)
    for refusing in (event.check, lambda: encode(event)):
        with pytest.raises(EventError, match=re.escape(sentence)):
            refusing()
    value = msgspec.msgpack.encode(event)
    with pytest.raises(EventError, match=re.escape(sentence)):
        decode(Headers(kind.TYPE, SCHEMA_VERSION, event.event_id), value)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (tool("g", 2**63), "Expected `int` <= 9223372036854775807"),
        (tool("g", 2**64), "can't serialize ints"),
        (tool("\ud800", 1), "surrogates not allowed"),
        (tool("g", 1.5), "Expected `int`, got `float`"),  # type: ignore[arg-type]
        (tool("g", np.int64(3)), "numpy.int64 is unsupported"),  # type: ignore[arg-type]
        (changed(ExecutionScored, value="1"), "execution.scored: a field cannot be written"),
    ],
    ids=["63 bits", "64 bits", "surrogate", "float", "numpy", "text"],
)
def test_a_field_that_could_not_be_read_again_is_not_written(event: Event, sentence: str) -> None:
    with pytest.raises(EventError, match=re.escape(sentence)):
        encode(event)


def test_a_record_holds_a_mebibyte_and_no_byte_more() -> None:
    room = RECORD_BYTES_MAX - len(encode(tool("g", 1, b"x" * 100_000))[1]) + 100_000
    assert len(encode(tool("g", 1, b"x" * room))[1]) == RECORD_BYTES_MAX
    sentence = f"{RECORD_BYTES_MAX + 1} bytes, a record holds {RECORD_BYTES_MAX}; open the log with blobs"
    with pytest.raises(EventError, match=sentence):
        encode(tool("g", 1, b"x" * (room + 1)))


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"type": "no.such"}, "e:tool:1: unknown event type 'no.such'"),
        ({"schema": SCHEMA_VERSION + 1}, "schema 5 is newer than 4; upgrade headrace"),
        ({"schema": 0}, "there is no schema 0; the first is 1"),
        ({"event_id": "e:tool:2"}, "e:tool:2: the header names another event than e:tool:1"),
        ({"type": "group.dispatched"}, "group.dispatched does not decode: Object contains unknown field"),
    ],
    ids=["type", "newer", "zero", "id", "other"],
)
def test_headers_that_do_not_fit_are_refused(headers: dict[str, Any], sentence: str) -> None:
    good, value = encode(tool("g", 1))
    with pytest.raises(EventError, match=re.escape(sentence)):
        decode(msgspec.structs.replace(good, **headers), value)


def test_token_ids_are_little_endian_int32_and_bounded() -> None:
    assert ids_to_bytes([1, 2**31 - 1]) == b"\x01\0\0\0\xff\xff\xff\x7f"
    assert ids_to_bytes(np.array([], dtype=np.int64)) == b""
    assert ids_from_bytes(ids_to_bytes(range(5))).tolist() == [0, 1, 2, 3, 4]
    for bad in ([-1], [2**31]):
        with pytest.raises(EventError, match=re.escape(f"token id outside [0, 2**31): {bad[0]}..{bad[0]}")):
            ids_to_bytes([*bad])


def test_log_probabilities_are_little_endian_float32() -> None:
    assert logprobs_to_bytes([-1.0]) == b"\0\0\x80\xbf"
    assert logprobs_from_bytes(logprobs_to_bytes([-0.5, 0.0])).tolist() == [-0.5, 0.0]
