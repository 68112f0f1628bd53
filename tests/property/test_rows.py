"""Rows become the events they were made of; a table is read in the order of its offsets from any files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.events import CATALOGUE, Event, EventError
from lake.log import Record
from lake.rows import dead_records, to_events, to_records
from lake.scan import in_offset_order
from lake.store import Store
from lake.tables import SCHEMAS, to_dead_letters, to_table
from lake.wire import Headers, encode
from tests.property.test_events import ANY_EVENT
from tests.support.events import ONE_OF_EACH, tool


def pairs(events: list[Event]) -> list[tuple[Record, Event]]:
    return [(Record(e.TOPIC, 3, 10 + i, e.key, *encode(e), 1_000_000 + i), e) for i, e in enumerate(events)]


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY_EVENT, min_size=1, max_size=12))
def test_rows_become_the_events_and_records_they_were_made_of(events: list[Event]) -> None:
    for topic in {e.TOPIC for e in events}:
        wanted = pairs([e for e in events if topic == e.TOPIC])
        table = to_table(topic, wanted)
        assert to_events(topic, table) == [e for _, e in wanted]
        assert to_records(topic, table) == [r for r, _ in wanted]
        chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
        assert to_events(topic, chunked) == [e for _, e in wanted]


@pytest.mark.parametrize("kind", sorted(CATALOGUE))
def test_every_event_type_comes_back(kind: str) -> None:
    wanted = pairs([e for e in ONE_OF_EACH if kind == e.TYPE])
    topic = wanted[0][1].TOPIC
    assert to_records(topic, to_table(topic, wanted)) == [r for r, _ in wanted]


def test_a_null_is_the_default_of_a_field_that_has_one_and_is_refused_elsewhere() -> None:
    table = to_table("tools", pairs([tool("g", 1)]))

    def without(name: str) -> pa.Table:
        at = table.schema.get_field_index(name)
        return table.set_column(at, table.schema.field(at), pa.nulls(1, table.schema.field(at).type))

    assert to_events("tools", without("status")) == [tool("g", 1)]
    assert to_events("tools", table.drop_columns(["status"])) == [tool("g", 1)]
    assert to_events("tools", without("call_id")) == [tool("g", 1)]
    with pytest.raises(EventError, match=r"tool.called has no name"):
        to_events("tools", without("name"))


def test_a_row_that_is_no_event_is_named() -> None:
    table = to_table("tools", pairs([tool("g", 1)]))
    at = table.schema.get_field_index("type")
    other = table.set_column(at, "type", pa.array(["no.such"]))
    with pytest.raises(EventError, match=r"events/tools is of type 'no.such'"):
        to_events("tools", other)
    at = table.schema.get_field_index("event_id")
    with pytest.raises(EventError, match="named 'x'"):
        to_records("tools", table.set_column(at, "event_id", pa.array(["x"])))


def test_a_row_from_before_the_column_is_a_record_of_the_first_schema() -> None:
    table = to_table("tools", pairs([tool("g", 1)]))
    old = table.drop_columns(["schema"]) if "schema" in table.column_names else table
    (record,) = to_records("tools", old)
    assert record.headers.schema == 1


def test_dead_letters_come_back_byte_for_byte() -> None:
    record = Record("calls", 1, 9, "g-1", Headers("no.such", 7, "x"), b"\xff\x00", 77)
    empty = Record("tools", 0, 3, "", Headers("", 0, ""), b"", 78)
    assert dead_records(to_dead_letters([(record, "why"), (empty, "why")])) == [record, empty]


# --------------------------------------------------------------------------- in order of offsets
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([1, 4000, 1 << 20]))
def test_any_files_are_read_in_the_order_of_offsets(
    tmp_path_factory: pytest.TempPathFactory, seed: int, files: int, bucket_bytes: int
) -> None:
    rng = np.random.default_rng(seed)
    table = Store(str(tmp_path_factory.mktemp("lake"))).table("events/tools", SCHEMAS["tools"])
    n = int(rng.integers(files, 400))
    lanes = rng.integers(0, 3, n)
    records = [
        Record("tools", int(lanes[i]), i, f"g-{i}", *encode(tool(f"g-{i}", i, b"x" * 40)), i)
        for i in range(n)
    ]
    events = [tool(f"g-{i}", i, b"x" * 40) for i in range(n)]
    order = rng.permutation(n) if seed % 2 else np.arange(n)
    for part in np.array_split(order, files):
        table.append(to_table("tools", [(records[i], events[i]) for i in part]))
    for lane in range(3):
        parts = in_offset_order(table, {"log_partition": lane}, bucket_bytes=bucket_bytes)
        found = [r for rows in parts for r in to_records("tools", rows)]
        assert found == [r for r in records if r.partition == lane]


def test_spilled_rows_leave_no_file_and_an_empty_table_gives_nothing(tmp_path: Path) -> None:
    table = Store(str(tmp_path / "lake")).table("events/tools", SCHEMAS["tools"])
    assert list(in_offset_order(table, {"log_partition": 0}, spill=str(tmp_path))) == []
    events = [tool("g", n, b"x" * 1000) for n in range(512)]
    for start in (0, 1):
        chosen = [p for p in pairs(events) if p[0].offset % 2 == start]
        table.append(to_table("tools", [(msgspec.structs.replace(r, partition=0), e) for r, e in chosen]))
    parts = list(in_offset_order(table, {"log_partition": 0}, spill=str(tmp_path), bucket_bytes=70_000))
    assert [o for rows in parts for o in rows["log_offset"].to_pylist()] == list(range(10, 522))
    assert [p.name for p in tmp_path.iterdir()] == ["lake"]
