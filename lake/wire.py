"""The wire form: an event as a record's headers and bytes, and back.

One event is one record: a msgpack map of the event's fields.  The headers carry the type, the schema
version and the deterministic event id.

    schema 1    the fields
    schema 2    also `claims`: {field: [sha256, bytes]}, fields too large for a record.  Each stands in the
                record empty; its bytes (text as UTF-8) lie in `lake.blobs`
    schema 3    also `place` of model.called
    schema 4    also `experts` of model.called; `transport`, `took_us`, `readback` of policy.published

A record of type `log.gap` holds nothing and means nothing: it fills an offset that no event has.
"""

from __future__ import annotations

import contextlib
import re
import types
import typing
from typing import TYPE_CHECKING, Protocol

import msgspec

from lake.events import CATALOGUE, TOPICS_BY_GROUP, Event, EventError, Int

if TYPE_CHECKING:
    from lake.log import Record

SCHEMA_VERSION = 4
SCHEMA_OF_CLAIMS = 2
CLAIMS_TAIL = 4096  # `encode` writes the claims last
RECORD_BYTES_MAX = 1 << 20
EVENT_BYTES_MAX = 256 << 20  # of one event with everything it claims
IDENTITY_CHARS_MAX = 16 << 10  # of an event id and of a key: both stand beside the value
CLAIM_BYTES_MIN = 1 << 10  # a claim takes some 90 bytes
GAP = "log.gap"

_encoder = msgspec.msgpack.Encoder()
_decoders = {name: msgspec.msgpack.Decoder(c) for name, c in CATALOGUE.items()}
_sha256 = re.compile("[0-9a-f]{64}")  # it becomes a path

Claim = tuple[str, Int]
"""The sha256 of a field's bytes, and how many they are."""


class Headers(msgspec.Struct, frozen=True, gc=False):
    """What stands beside a record's bytes."""

    type: str
    schema: int
    event_id: str


class BlobStore(Protocol):
    """`lake.blobs.Blobs`, as the wire form sees it."""

    def put(self, data: bytes) -> str: ...

    def get(self, sha256: str, size: int) -> bytes: ...


class NoBlobs(ValueError):
    """A record claims bytes outside the log, and whoever reads it was not told where they lie."""


class _Claims(msgspec.Struct, frozen=True):
    """The part of a value that names what is not in it."""

    claims: dict[str, Claim] = {}


_claims_decoder = msgspec.msgpack.Decoder(_Claims)
UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What reading bytes raises: no msgpack, no such event, lists as keys, lists in lists in lists ..."""


def _parsed(kind: str, schema: int, value: bytes) -> tuple[Event, dict[str, Claim]]:
    """The event that a value holds, and what it claims; the event has no claimed field yet."""
    try:
        return _decoders[kind].decode(value), {}
    except msgspec.ValidationError:  # seldom: an event knows no field `claims`
        claims = _claims_decoder.decode(value).claims if schema >= SCHEMA_OF_CLAIMS else {}
        if not claims:
            raise
    value = _encoder.encode({n: v for n, v in msgspec.msgpack.decode(value).items() if n != "claims"})
    return _decoders[kind].decode(value), claims


def _large_fields(kind: type[Event]) -> dict[str, type]:
    """The fields of bytes or text, which alone can be claimed: name -> bytes or str."""
    found: dict[str, type] = {}
    for name, hint in typing.get_type_hints(kind).items():
        plain = [a for a in typing.get_args(hint) if a is not type(None)]
        inner = plain[0] if isinstance(hint, types.UnionType) and len(plain) == 1 else hint
        if name in kind.__struct_fields__ and inner in (bytes, str):
            found[name] = inner
    return found


CLAIMABLE = {name: _large_fields(c) for name, c in CATALOGUE.items()}


# ------------------------------------------------------------------------------------ writing
def encode(event: Event, blobs: BlobStore | None = None) -> tuple[Headers, bytes]:
    """Headers and value of an event's record; the fields that do not fit are put into `blobs` first.

    Raises EventError where the fields contradict each other, where one has a value that `decode`
    would refuse (of another type, over 64 bits, no Unicode), where the record would be over
    RECORD_BYTES_MAX bytes and there are no blobs, or the event is over EVENT_BYTES_MAX.  Raises
    LogUnavailable where the blobs cannot be written now.
    """
    try:
        event.check()
        event_id = event.event_id
        _check_identity(event_id, event.key)
        size, value = _size(event), b""
        if size <= RECORD_BYTES_MAX:
            value = _encoder.encode(event)
            size = len(value)
        if size > RECORD_BYTES_MAX:
            value = _claimed(event, size, blobs)
        _parsed(event.TYPE, SCHEMA_VERSION, value)  # 3 us for 12 KB: what is in the log can be read
    except EventError:
        raise
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise EventError(f"{event.TYPE}: a field cannot be written: {error}") from error
    return Headers(event.TYPE, SCHEMA_VERSION, event_id), value


def _check_identity(*names: str) -> None:
    for name in names:
        if len(name) > IDENTITY_CHARS_MAX:
            raise EventError(
                f"{name[:40]!r}...: an id or a key of {len(name)} characters; at most {IDENTITY_CHARS_MAX}"
            )


def _size(event: Event) -> int:
    """The bytes of an event's value, at least: those of its bytes and text."""
    fields = [getattr(event, name) for name in CLAIMABLE[event.TYPE]]
    return sum([len(v) for v in fields if isinstance(v, bytes | str)])


def _claimed(event: Event, size: int, blobs: BlobStore | None) -> bytes:
    """The value of an event of at least `size` bytes: its largest fields are put into `blobs`, one after
    the other until the rest fits.
    """
    if blobs is None:
        raise EventError(
            f"{event.event_id}: {size} bytes, a record holds {RECORD_BYTES_MAX}; "
            "open the log with blobs (`Run.open_log`, or `open_log(url, blobs)`), which take large fields"
        )
    _check_size(event.event_id, size)
    kinds = CLAIMABLE[event.TYPE]
    data: dict[str, bytes] = {}
    for name, kind in kinds.items():
        field = getattr(event, name)
        if isinstance(field, bytes | str) and isinstance(field, kind) and len(field) >= CLAIM_BYTES_MIN:
            data[name] = field if isinstance(field, bytes) else field.encode()
    rest, claims = event, dict[str, Claim]()
    for name in sorted(data, key=lambda n: (-len(data[n]), n)):
        rest = msgspec.structs.replace(rest, **{name: kinds[name]()})
        claims[name] = ("0" * 64, len(data[name]))
        if _size(rest) <= RECORD_BYTES_MAX and len(_value(rest, claims)) <= RECORD_BYTES_MAX:
            _check_size(event.event_id, _size(rest) + sum(s for _, s in claims.values()))
            return _value(rest, {n: (blobs.put(data[n]), s) for n, (_, s) in claims.items()})
    raise EventError(
        f"{event.event_id}: {size} bytes, of which more than {RECORD_BYTES_MAX} stand in fields that are "
        "neither text nor bytes, or in many small ones; say less in one event"
    )


def _check_size(event_id: str, size: int) -> None:
    if size > EVENT_BYTES_MAX:
        raise EventError(
            f"{event_id}: {size} bytes; an event holds {EVENT_BYTES_MAX} with all that it claims: "
            "keep the content elsewhere and send a reference"
        )


def _value(event: Event, claims: dict[str, Claim]) -> bytes:
    """The value of an event with its claims as one more field."""
    fields = msgspec.msgpack.decode(_encoder.encode(event))
    return _encoder.encode({**fields, "claims": claims})


# ------------------------------------------------------------------------------------ reading
def event_of(record: Record, blobs: BlobStore | None = None, *, tokens: bool = True) -> Event | None:
    """The event of a record as it was read from a log; None for a gap, where nothing happened.

    Raises what `decode` raises, and EventError where the record lies in a topic or under a key that
    is not the event's: whoever reads whole groups would not find it.
    """
    if record.headers.type == GAP:
        if record.value:
            raise EventError(f"a gap holds nothing, this one {len(record.value)} bytes")
        return None
    event = decode(record.headers, record.value, blobs, tokens=tokens)
    if record.topic != event.TOPIC:
        raise EventError(f"{record.headers.event_id}: {event.TYPE} does not belong into {record.topic}")
    if record.topic in TOPICS_BY_GROUP and record.key != event.key:
        raise EventError(
            f"{record.headers.event_id}: lies under the key {record.key[:100]!r}; its group is {event.key!r}"
        )
    return event


def size_of(record: Record) -> int:
    """The bytes of a record with all that it claims: what its event takes in memory, roughly.

    Claims beyond EVENT_BYTES_MAX count for nothing: `decode` refuses them and fetches none.
    """
    size, claimed = len(record.value), 0
    if record.headers.schema >= SCHEMA_OF_CLAIMS and b"claims" in record.value[-CLAIMS_TAIL:]:
        with contextlib.suppress(*UNREADABLE):
            claimed = sum(
                max(0, length) for _, length in _claims_decoder.decode(record.value).claims.values()
            )
    return size + claimed if size + claimed <= EVENT_BYTES_MAX else size


def decode(headers: Headers, value: bytes, blobs: BlobStore | None = None, *, tokens: bool = True) -> Event:
    """The event of a record, its claims fetched from `blobs`; without `tokens` they are not looked at.

    Raises EventError for unknown types, newer schemas, bad fields, claims whose bytes are missing or
    damaged; LogUnavailable where the blobs do not answer; NoBlobs where there are claims and no blobs.
    """
    if headers.type not in _decoders:
        raise EventError(f"{headers.event_id}: unknown event type {headers.type!r}")
    if headers.schema < 1:
        raise EventError(f"{headers.event_id}: there is no schema {headers.schema}; the first is 1")
    if headers.schema > SCHEMA_VERSION:
        raise EventError(
            f"{headers.event_id}: schema {headers.schema} is newer than {SCHEMA_VERSION}; upgrade headrace"
        )
    try:
        event, claims = _parsed(headers.type, headers.schema, value)
    except UNREADABLE as error:
        raise EventError(f"{headers.event_id}: {headers.type} does not decode: {error}") from error
    if claims:
        event = _fetched(headers, event, len(value), claims, blobs)
    if tokens:
        event.check()
    else:
        event.check_shape()
    event_id = event.event_id
    if event_id != headers.event_id:
        raise EventError(f"{headers.event_id}: the header names another event than {event_id}")
    _check_identity(event_id, event.key)
    return event


def _fetched(
    headers: Headers, event: Event, size: int, claims: dict[str, Claim], blobs: BlobStore | None
) -> Event:
    """The event with the fields that it claims; nothing is fetched before all claims are sound."""
    kinds = CLAIMABLE[headers.type]
    for name, (sha256, length) in claims.items():
        if name not in kinds or not _sha256.fullmatch(sha256) or length < 1:
            raise EventError(
                f"{headers.event_id}: a claim that cannot be: {name[:100]!r}, sha256 {sha256[:100]!r}, "
                f"{length} bytes; fields of text and bytes are {', '.join(kinds)}"
            )
        if getattr(event, name):
            raise EventError(f"{headers.event_id}: {name} stands in the record and is claimed too")
    _check_size(headers.event_id, size + sum(length for _, length in claims.values()))
    if blobs is None:
        raise NoBlobs(
            f"{headers.event_id}: {', '.join(claims)} lie outside the log; open it with its blobs "
            "(`Run.open_log`, or `open_log(url, blobs)`)"
        )
    fields: dict[str, bytes | str] = {}
    for name, (sha256, length) in claims.items():
        try:
            data = blobs.get(sha256, length)
            fields[name] = data if kinds[name] is bytes else data.decode()
        except ValueError as error:  # missing, damaged, or no UTF-8
            raise EventError(f"{headers.event_id}: {name}: {error}") from error
    return msgspec.structs.replace(event, **fields)
