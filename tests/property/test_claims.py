"""Claims: whatever is moved out of a record comes back, and no claim raises anything but EventError.

Records are made small here, so that most events claim something; the blobs are real, on fsspec's
file system in memory.
"""

from __future__ import annotations

import hashlib
import uuid

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake import wire
from lake.blobs import Blobs
from lake.events import CATALOGUE, Event, EventError
from lake.log import Record
from lake.wire import SCHEMA_VERSION, Headers, NoBlobs, decode, encode, event_of, size_of
from tests.support.events import ONE_OF_EACH
from tests.support.strategies import ANY_EVENT, TEXTS

SMALL = 250
RELAXED = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RECORD_BYTES_MAX", SMALL)
    monkeypatch.setattr(wire, "CLAIM_BYTES_MIN", 8)


@pytest.fixture(scope="module")
def blobs() -> Blobs:
    return Blobs(f"memory://{uuid.uuid4().hex}")


def _claims(value: bytes) -> dict[str, list[object]]:
    found: dict[str, list[object]] = msgspec.msgpack.decode(value).get("claims", {})
    return found


@pytest.mark.usefixtures("small_records")
@RELAXED
@given(ANY_EVENT)
def test_an_event_comes_back_whatever_it_claims(blobs: Blobs, event: Event) -> None:
    try:
        headers, value = encode(event, blobs)
    except EventError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "neither text nor bytes" in refused
        return
    assert len(value) <= SMALL
    assert headers == Headers(event.TYPE, SCHEMA_VERSION, event.event_id)
    assert decode(headers, value, blobs) == event
    assert encode(decode(headers, value, blobs), blobs) == (headers, value)
    record = Record(event.TOPIC, 0, 0, event.key, headers, value, 0)
    assert event_of(record, blobs) == event
    claims = _claims(value)
    assert size_of(record) == len(value) + sum(int(str(size)) for _, size in claims.values())
    if claims:
        with pytest.raises(EventError, match="open the log with blobs"):
            encode(event)
        with pytest.raises(NoBlobs):
            decode(headers, value)
    else:
        assert encode(event) == (headers, value)


@pytest.mark.usefixtures("small_records")
@RELAXED
@given(ANY_EVENT)
def test_the_largest_fields_go_first_and_the_last_of_them_had_to(blobs: Blobs, event: Event) -> None:
    try:
        _, value = encode(event, blobs)
    except EventError:
        return
    sizes = [int(str(size)) for _, size in _claims(value).values()]
    fields = [getattr(event, n) for n in wire.CLAIMABLE[event.TYPE]]
    kept = sorted((len(f if isinstance(f, bytes) else f.encode()) for f in fields if f), reverse=True)
    assert sizes == kept[: len(sizes)]
    if sizes:
        assert len(value) + sizes[-1] > SMALL - 100  # with the last one in it would not have fitted


HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
CLAIM = st.one_of(
    st.tuples(HEX | st.just(hashlib.sha256(b"x").hexdigest()) | TEXTS, st.integers(-(2**63), 2**64 - 1)),
    st.lists(st.none() | TEXTS | st.integers(0, 9) | st.binary(max_size=9), max_size=3),
    st.none() | st.integers(-(2**63), 2**64 - 1) | TEXTS,
)


@RELAXED
@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_claims_of_any_kind_raise_nothing_but_event_error(
    blobs: Blobs, event: Event, data: st.DataObject
) -> None:
    blobs.put(b"x")
    names = st.sampled_from(event.__struct_fields__) | TEXTS | st.integers(0, 9)
    claims = data.draw(st.dictionaries(names, CLAIM, min_size=1, max_size=3) | CLAIM)
    fields = msgspec.msgpack.decode(encode(event)[1])
    for name in data.draw(st.sets(st.sampled_from(sorted(fields)))):
        fields[name] = b"" if isinstance(fields[name], bytes) else ""
    value = msgspec.msgpack.encode(fields | {"claims": claims})
    headers = Headers(event.TYPE, data.draw(st.sampled_from([1, SCHEMA_VERSION])), event.event_id)
    record = Record(event.TOPIC, 0, 0, event.key, headers, value, 0)
    assert len(value) <= size_of(record) <= wire.EVENT_BYTES_MAX
    try:
        found = event_of(record, blobs)
    except EventError:
        return
    assert found is not None
    assert decode(*encode(found)) == found


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([*sorted(CATALOGUE), "log.gap", ""]),
    st.sampled_from([-1, 0, 1, 2, 3]),
    TEXTS,
    st.binary(max_size=64)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.binary(max_size=9) | TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    ).map(msgspec.msgpack.encode)
    | st.integers(1, 5000).map(lambda n: b"\x81\xa6claims" + b"\x91" * n + b"\xc0"),
)
def test_any_bytes_of_any_type_and_schema_raise_nothing_but_event_error(
    kind: str, schema: int, event_id: str, value: bytes
) -> None:
    blobs = Blobs("memory://fuzz")
    record = Record("cells", 0, 0, "", Headers(kind, schema, event_id), value, 0)
    assert size_of(record) >= len(value)
    try:
        assert event_of(record, blobs) is None
    except EventError:
        return
    assert (kind, value) == ("log.gap", b"")
