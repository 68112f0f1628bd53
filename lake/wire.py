"""The wire form: an event as a record's headers and bytes, and back.

One event is one record: a msgpack map of the event's fields.  The headers carry the type, the schema
version and the deterministic event id.
"""

from __future__ import annotations

import msgspec

from lake.events import CATALOGUE, Event, EventError

SCHEMA_VERSION = 1
RECORD_BYTES_MAX = 1 << 20

_encoder = msgspec.msgpack.Encoder()
_decoders = {name: msgspec.msgpack.Decoder(c) for name, c in CATALOGUE.items()}


class Headers(msgspec.Struct, frozen=True):
    """What stands beside a record's bytes."""

    type: str
    schema: int
    event_id: str


def encode(event: Event) -> tuple[Headers, bytes]:
    """Headers and value of an event's record.

    Raises EventError where the fields contradict each other, where one has a value that `decode`
    would refuse (of another type, over 64 bits, no Unicode), or where the record would be over
    RECORD_BYTES_MAX bytes.
    """
    try:
        event.check()
        value = _encoder.encode(event)
        _decoders[event.TYPE].decode(value)  # 2 us for 12 KB: what is in the log can be read
    except EventError:
        raise
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise EventError(f"{event.TYPE}: a field cannot be written: {error}") from error
    if len(value) > RECORD_BYTES_MAX:
        raise EventError(
            f"{event.event_id}: {len(value)} bytes, a record holds {RECORD_BYTES_MAX}; "
            "keep the arrays in the object store and send a reference"
        )
    return Headers(event.TYPE, SCHEMA_VERSION, event.event_id), value


def decode(headers: Headers, value: bytes) -> Event:
    """The event of a record.  Raises EventError for unknown types, newer schemas, bad fields."""
    decoder = _decoders.get(headers.type)
    if decoder is None:
        raise EventError(f"{headers.event_id}: unknown event type {headers.type!r}")
    if headers.schema < 1:
        raise EventError(f"{headers.event_id}: there is no schema {headers.schema}; the first is 1")
    if headers.schema > SCHEMA_VERSION:
        raise EventError(
            f"{headers.event_id}: schema {headers.schema} is newer than {SCHEMA_VERSION}; upgrade headrace"
        )
    try:
        event = decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise EventError(f"{headers.event_id}: {headers.type} does not decode: {error}") from error
    event.check()
    if event.event_id != headers.event_id:
        raise EventError(f"{headers.event_id}: the header names another event than {event.event_id}")
    return event
