"""Rows of event tables back into events and records: the inverse of `lake.tables`.

    to_events(topic, to_table(topic, pairs)) == [event for _, event in pairs]

A null is the field's default where it has one: a row that was written before the field was known reads
as its event would.  Token lists become bytes by their Arrow buffers, never by way of numbers.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lake.events import CATALOGUE, Event, EventError, VersionSpan
from lake.log import Record
from lake.tables import BYTES_AS, SPAN
from lake.wire import BlobStore, Headers, encode

FIRST_SCHEMA = 1
"""The wire schema of rows that were written before tables said it."""


def _plan(kind: type[Event]) -> list[tuple[str, bool, bool, Any]]:
    """(name, has a default, may be None, the default) of each field."""
    hints = typing.get_type_hints(kind)
    return [
        (f.name, not f.required, type(None) in typing.get_args(hints[f.name]), f.default)
        for f in msgspec.structs.fields(kind)
    ]


_PLANS = {name: (kind, _plan(kind)) for name, kind in CATALOGUE.items()}


def to_events(topic: str, table: pa.Table) -> list[Event]:
    """The event of each row of the topic's table; columns that no event has are not looked at.

    Raises EventError for a row that cannot be an event: an unknown type, or a null where it must not be.
    """
    kinds = table["type"].to_pylist()
    wanted = {name for kind in set(kinds) if kind in _PLANS for name, *_ in _PLANS[kind][1]}
    columns = {name: _values(name, table.column(name)) for name in wanted & set(table.column_names)}
    absent = [None] * table.num_rows
    return [
        _event(topic, row, kind, {name: columns.get(name, absent)[row] for name, *_ in _PLANS[kind][1]})
        if kind in _PLANS
        else _unknown(topic, kind)
        for row, kind in enumerate(kinds)
    ]


def _unknown(topic: str, kind: str) -> Event:
    raise EventError(f"a row of events/{topic} is of type {kind!r}, which is unknown; upgrade headrace")


def _event(topic: str, row: int, kind: str, values: dict[str, Any]) -> Event:
    made, fields = _PLANS[kind]
    for name, has_default, may_be_none, default in fields:
        value = values[name]
        if has_default and (value is None or value == default):
            del values[name]  # the default itself, which the wire form leaves out
        elif value is None and not may_be_none:
            raise EventError(f"row {row} of events/{topic}: {kind} has no {name}; the table is damaged")
    return made(**values)


def _values(name: str, column: pa.ChunkedArray) -> Sequence[Any]:
    if name in BYTES_AS:
        return [data for chunk in column.chunks for data in _bytes(chunk, BYTES_AS[name])]
    values: list[Any] = column.to_pylist()
    if pa.types.is_list(column.type):
        spans = pa.types.is_struct(column.type.value_type) and column.type.value_type.equals(SPAN)
        return [v and tuple(VersionSpan(**s) if spans else s for s in v) for v in map(_tuple, values)]
    return values


def _tuple(value: list[Any] | None) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)


def _bytes(array: pa.Array, kind: pa.DataType) -> list[bytes | None]:
    """Little-endian bytes of each list of 4-byte items."""
    array = array.cast(kind)
    item = "<i4" if pa.types.is_int32(kind.value_type) else "<f4"
    data = np.asarray(array.values).astype(item, copy=False).view(np.uint8)
    edges = 4 * np.asarray(array.offsets, np.int64)
    valid = np.asarray(array.is_valid())
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), valid.tolist(), strict=True)
    return [data[start:end].tobytes() if there else None for start, end, there in pairs]


def to_records(topic: str, table: pa.Table, blobs: BlobStore | None = None) -> list[Record]:
    """The record of each row of the topic's table, as it lay in the log; what is too large goes to `blobs`.

    Raises EventError where a row cannot be an event, or is another one than its `event_id` says.
    """
    heads = {
        n: table.column(n).to_pylist() for n in ("event_id", "log_partition", "log_offset", "appended_us")
    }
    schemas = (
        table.column("schema").to_pylist() if "schema" in table.column_names else [None] * table.num_rows
    )
    records = []
    for row, event in enumerate(to_events(topic, table)):
        headers, value = encode(event, blobs)
        if headers.event_id != heads["event_id"][row]:
            raise EventError(
                f"row {row} of events/{topic} is named {heads['event_id'][row]!r}, its fields make "
                f"{headers.event_id!r}; the table is damaged"
            )
        headers = msgspec.structs.replace(headers, schema=schemas[row] or FIRST_SCHEMA)
        place = (heads["log_partition"][row], heads["log_offset"][row])
        records.append(Record(topic, *place, event.key, headers, value, heads["appended_us"][row]))
    return records


def dead_records(table: pa.Table) -> list[Record]:
    """The record of each row of `dead_letters`, byte for byte."""
    return [
        Record(
            topic=row["topic"],
            partition=row["log_partition"],
            offset=row["log_offset"],
            key=row["key"] or "",
            headers=Headers(row["type"] or "", row["schema"] or 0, row["event_id"] or ""),
            value=row["value"] or b"",
            appended_us=row["appended_us"],
        )
        for row in table.to_pylist()
    ]
