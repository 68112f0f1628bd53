"""encode and decode are inverse for any event; bytes of any kind raise nothing but EventError."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.events import CATALOGUE, Event, EventError
from lake.log import Record
from lake.tables import SCHEMAS, to_table
from lake.wire import SCHEMA_VERSION, Headers, decode, encode
from tests.support.events import ONE_OF_EACH
from tests.support.strategies import ANY_EVENT, TEXTS


@settings(max_examples=200, deadline=None)
@given(ANY_EVENT)
def test_an_event_decodes_to_itself_and_fits_its_table(event: Event) -> None:
    headers, value = encode(event)
    assert headers == Headers(event.TYPE, SCHEMA_VERSION, event.event_id)
    decoded = decode(headers, value)
    assert decoded == event
    assert encode(decoded) == (headers, value)
    table = to_table(event.TOPIC, [(Record(event.TOPIC, 0, 0, event.key, headers, value, 0), decoded)])
    assert table.schema == SCHEMAS[event.TOPIC]


def _check(headers: Headers, value: bytes) -> None:
    """Whatever decode lets through can be written and tabled; nothing but EventError comes out of it."""
    try:
        event = decode(headers, value)
    except EventError:
        return
    encode(event)
    to_table(event.TOPIC, [(Record(event.TOPIC, 0, 0, event.key, headers, value, 0), event)])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CATALOGUE)), st.binary(max_size=200))
def test_any_bytes_decode_or_raise_event_error(kind: str, value: bytes) -> None:
    _check(Headers(kind, SCHEMA_VERSION, "x"), value)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_damaged_records_decode_or_raise_event_error(event: Event, data: st.DataObject) -> None:
    headers, value = encode(event)
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _check(headers, bytes(damaged[: data.draw(st.integers(len(damaged) // 2, len(damaged)))]))


OTHERS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS | st.binary(max_size=9)
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_fields_of_other_types_decode_or_raise_event_error(event: Event, data: st.DataObject) -> None:
    fields = msgspec.msgpack.decode(encode(event)[1])
    for name in data.draw(st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=3)):
        fields[name] = data.draw(
            OTHERS | st.lists(OTHERS, max_size=3) | st.lists(st.lists(OTHERS), max_size=3)
        )
    _check(Headers(event.TYPE, SCHEMA_VERSION, event.event_id), msgspec.msgpack.encode(fields))
