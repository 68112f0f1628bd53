"""Records that are wrong, each in a way of its own, made from good events by a seed.

    for case in corrupted(seed, count): log.append_raw(case.topic, case.key, case.headers, case.value)

Every case has event ids that no other has.  `kind` says what was done to it.  A case is bad for a
reason that is known when it is made; only of `fuzzed`, whose bytes are changed at random, `decode`
itself must say it (and what it lets through is looked at by `is_event`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np

from lake.events import CATALOGUE, TOPICS, TOPICS_BY_GROUP, Event, ExecutionScored, ModelCalled, VersionSpan
from lake.wire import GAP, SCHEMA_VERSION, Headers, encode
from tests.support.events import ONE_OF_EACH

MINE = ("group_id", "execution_id", "run", "session", "decision", "cell")


class Case(msgspec.Struct, frozen=True):
    """A record for `append_raw`, and what is wrong with it."""

    kind: str
    topic: str
    key: str
    headers: Headers
    value: bytes


def good(event: Event, number: int) -> Event:
    """The event with ids that no other number gives."""
    fields = {n: f"{getattr(event, n)}-{number}" for n in MINE if n in event.__struct_fields__}
    for name in ("step", "policy_version"):
        if not fields and name in event.__struct_fields__:
            fields[name] = 1000 + number
    return msgspec.structs.replace(event, **fields)


def _call(number: int, tokens: int = 6) -> ModelCalled:
    event = good(next(e for e in ONE_OF_EACH if isinstance(e, ModelCalled)), number)
    ids = np.arange(tokens, dtype="<i4").tobytes()
    return msgspec.structs.replace(
        event, context_ids=ids, output_ids=ids, output_logprobs=(-np.arange(tokens, dtype="<f4")).tobytes(),
        spans=(VersionSpan(1, 0, tokens),),
    )  # fmt: skip


def _put(data: bytes, at: int, item: bytes) -> bytes:
    return data[: 4 * at] + item + data[4 * at + 4 :]


def _raw(event: Event, **fields: Any) -> bytes:
    """The value of an event with fields that nobody checked."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(event)) | fields)


def _headers(event: Event, **fields: Any) -> Headers:
    return msgspec.structs.replace(Headers(event.TYPE, SCHEMA_VERSION, event.event_id), **fields)


# Each maker gives (event, headers or None for the event's own, value, topic, key) from a good event.
Made = tuple[Headers, bytes, str, str]
Maker = Callable[[Random, Event, int], Made]


def _with(value: Callable[[Random, Event], bytes]) -> Maker:
    """A bad value under the event's own headers."""
    return lambda rng, event, _: (_headers(event), value(rng, event), event.TOPIC, event.key)


def _of_call(field: Callable[[Random, ModelCalled], dict[str, Any]]) -> Maker:
    """A call with bad fields."""

    def make(rng: Random, _: Event, number: int) -> Made:
        event = _call(number)
        return _headers(event), _raw(event, **field(rng, event)), event.TOPIC, event.key

    return make


def _with_headers(fields: Callable[[Random, Event], dict[str, Any]]) -> Maker:
    """A good value under bad headers."""
    return lambda rng, event, _: (
        _headers(event, **fields(rng, event)), encode(event)[1], event.TOPIC, event.key,
    )  # fmt: skip


def _fuzzed(rng: Random, event: Event) -> bytes:
    """One to eight bytes changed."""
    value = bytearray(encode(event)[1])
    for _ in range(rng.randint(1, 8)):
        value[rng.randrange(len(value))] = rng.randrange(256)
    return bytes(value)


def _truncated(rng: Random, event: Event) -> bytes:
    value = encode(event)[1]
    return value[: rng.randrange(len(value))]


def _missing(rng: Random, event: Event) -> bytes:
    """Without a field that it must have."""
    fields = msgspec.msgpack.decode(encode(event)[1])
    required = [f.name for f in msgspec.structs.fields(type(event)) if f.required]
    del fields[rng.choice(required)]
    return msgspec.msgpack.encode(fields)


def _bomb(rng: Random, event: Event) -> bytes:
    """Lists in lists by the hundred thousand, and lengths that no record has."""
    deep = rng.randrange(1_000, 300_000)
    bombs = [
        b"\x82\xa4bomb" + b"\x91" * deep + b"\xc0\xa7time_us\x01",
        b"\x81\xa4bomb" + b"\x81\xa1x" * (deep // 3) + b"\xc0",
        b"\x81" * deep,
        b"\x82\xa7time_us\x01\xa4bomb" + rng.choice([b"\xdd", b"\xdf", b"\xc6", b"\xdb"]) + b"\xff" * 4,
        rng.choice([b"\xdd", b"\xdf", b"\xc9", b"\xc6"]) + struct.pack(">I", rng.randrange(2**31, 2**32)),
        b"\x81\xa6claims" + b"\x91" * deep + b"\xc0",
        b"\x81\xa6claims\xdf\xff\xff\xff\xff",
    ]
    return rng.choice(bombs)


def _huge(rng: Random, event: Event) -> bytes:
    """A whole number beyond 63 bits."""
    number = rng.choice([2**63, 2**64 - 1, rng.randrange(2**63, 2**64)])
    return _raw(event, time_us=number)


def _another(rng: Random, event: Event) -> bytes:
    """A value of another type of event."""
    return encode(rng.choice([e for e in ONE_OF_EACH if e.TYPE != event.TYPE]))[1]


def _claimed(rng: Random, event: Event) -> bytes:
    """Claims that no bytes stand behind, or that cannot be."""
    name = rng.choice([f for f in event.__struct_fields__ if isinstance(getattr(event, f), str | bytes)])
    fields = msgspec.msgpack.decode(encode(event)[1])
    fields[name] = b"" if isinstance(fields[name], bytes) else ""
    sha256 = rng.choice([f"{rng.getrandbits(256):064x}", "../../../etc/passwd", "", "A" * 64])
    size = rng.choice([1, 3 << 20, 0, -1, 1 << 40, 2**63 - 1])
    return msgspec.msgpack.encode(fields | {"claims": {name: [sha256, size]}})


def _moved(rng: Random, event: Event, _: int) -> Made:
    """A good record in the topic of others."""
    topic = rng.choice([t for t in TOPICS if t != event.TOPIC])
    return _headers(event), encode(event)[1], topic, event.key


def _misplaced(rng: Random, _: Event, number: int) -> Made:
    """A good record under the key of another group."""
    event = good(rng.choice([e for e in ONE_OF_EACH if e.TOPIC in TOPICS_BY_GROUP]), number)
    return _headers(event), encode(event)[1], event.TOPIC, rng.choice(["", "\ufffd\ufffd", f"other-{number}"])


def _unscored(rng: Random, _: Event, number: int) -> Made:
    event = good(next(e for e in ONE_OF_EACH if isinstance(e, ExecutionScored)), number)
    value = _raw(event, value=rng.choice([float("nan"), float("inf"), -float("inf"), None, "1"]))
    return _headers(event), value, event.TOPIC, event.key


def _gap(rng: Random, event: Event, _: int) -> Made:
    """A gap that holds something."""
    return Headers(GAP, SCHEMA_VERSION, ""), encode(event)[1], event.TOPIC, event.key


ITEMS = {
    "negative ids": [struct.pack("<i", n) for n in (-1, -(2**31))],
    "logprobs": [struct.pack("<f", x) for x in (float("nan"), float("inf"), -float("inf"), 0.5, 1e30)]
    + [b"\xff\xff\xff\xff"],
}
MAKERS: dict[str, Maker] = {
    "fuzzed": _with(_fuzzed),
    "truncated": _with(_truncated),
    "a field missing": _with(_missing),
    "a field too many": _with(lambda rng, e: _raw(e, **{rng.choice(["x", "", "time_us\0"]): rng.random()})),
    "bomb": _with(_bomb),
    "huge number": _with(_huge),
    "empty": _with(lambda rng, event: b""),
    "noise": _with(lambda rng, event: b"\xc1" + rng.randbytes(rng.randrange(1, 5_000))),
    "another program": _with(lambda rng, event: b'{"time_us": 1, "message": "no msgpack"}'),
    "value of another type": _with(_another),
    "claims": _with(_claimed),
    "ids cut": _of_call(
        lambda rng, e: {(n := rng.choice(["context_ids", "output_ids"])): getattr(e, n)[: -rng.randint(1, 3)]}
    ),
    "negative ids": _of_call(
        lambda rng, e: {
            (n := rng.choice(["context_ids", "output_ids"])): _put(
                getattr(e, n), rng.randrange(6), rng.choice(ITEMS["negative ids"])
            )
        }
    ),
    "logprobs too few": _of_call(
        lambda rng, e: {"output_logprobs": e.output_logprobs[: -rng.randint(1, 20)]}
    ),
    "logprobs": _of_call(
        lambda rng, e: {
            "output_logprobs": _put(e.output_logprobs or b"", rng.randrange(6), rng.choice(ITEMS["logprobs"]))
        }
    ),
    "spans": _of_call(
        lambda rng, e: {"spans": rng.choice([[[1, 0, 5]], [[1, 1, 6]], [[1, 0, 2**63 - 1]], [[1, 0]], [[]]])}
    ),
    "counters": _of_call(
        lambda rng, e: rng.choice(
            [{"call_id": -1}, {"shared_len": -1}, {"parent_call_id": 9}, {"shared_len": 0}, {"role": "[/x]"}]
        )
    ),
    "unknown type": _with_headers(
        lambda rng, e: {"type": rng.choice(["", "no.such", "model.called\0", "組"])}
    ),
    "future schema": _with_headers(
        lambda rng, e: {"schema": rng.choice([SCHEMA_VERSION + 1, 99, 2**31, 2**62])}
    ),
    "no schema": _with_headers(lambda rng, e: {"schema": rng.choice([0, -1, -(2**62)])}),
    "header of another": _with_headers(lambda rng, e: {"event_id": rng.choice(["", "x", e.event_id + " "])}),
    "header of another type": _with_headers(
        lambda rng, e: {"type": rng.choice([t for t in CATALOGUE if t != e.TYPE])}
    ),
    "topic": _moved,
    "key": _misplaced,
    "score": _unscored,
    "gap": _gap,
}


def corrupted(seed: int, count: int) -> Iterator[Case]:
    """So many bad records, every kind and every type of event in turn."""
    rng, kinds = Random(seed), list(MAKERS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        event = good(ONE_OF_EACH[(number // len(kinds)) % len(ONE_OF_EACH)], number)
        headers, value, topic, key = MAKERS[kind](rng, event, number)
        yield Case(kind, topic, key, headers, value)
