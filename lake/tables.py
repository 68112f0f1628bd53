"""The event tables, rendered from the catalogue: one table a topic, one row an event.

    calls, tools, executions, scores, groups, policy, cells     unique on event_id; replay is a no-op
    dead_letters     one row a record that did not decode: its bytes, where it lay, and why

A column is a field of an event; a table has the fields of every event of its topic, null where an
event has no such field.  Token ids become list<int32>, log-probabilities list<float32>.  In SQL the
tables are named `event_calls`, `event_executions`, ... and `dead_letters`.
"""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lake.events import CATALOGUE, TOPICS, Event, VersionSpan, are_logprobs
from lake.log import Record

HEAD = (
    pa.field("event_id", pa.string()),
    pa.field("type", pa.string()),
    pa.field("log_partition", pa.int32()),
    pa.field("log_offset", pa.int64()),
    pa.field("appended_us", pa.int64()),
    pa.field("schema", pa.int32()),  # of the wire form; null in rows that were written before it was kept
)
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
REASON_CHARS_MAX = 2000
SPAN = pa.struct([("version", pa.int64()), ("start", pa.int32()), ("end", pa.int32())])
BYTES_AS = {  # what the bytes of a field hold; anything else stays binary
    "context_ids": pa.list_(pa.int32()),
    "output_ids": pa.list_(pa.int32()),
    "output_logprobs": pa.list_(pa.float32()),
}
COUNTED = {  # lengths beside the lists, so that SQL need not read a list; null where the list is null
    "calls": {"n_context": "context_ids", "n_output": "output_ids", "n_logprobs": "output_logprobs"}
}
DEAD_LETTERS = pa.schema(
    [
        ("topic", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("appended_us", pa.int64()),
        ("key", pa.string()),
        ("event_id", pa.string()),
        ("type", pa.string()),
        ("schema", pa.int32()),
        ("value", pa.binary()),
        ("reason", pa.string()),
    ]
)
_SCALARS = {int: pa.int64(), str: pa.string(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}


def app_id(topic: str, partition: int) -> str:
    """The name under which a commit carries the offset that a table has reached in a partition of the log."""
    return f"log/{topic}/{partition}"


def _arrow_type(name: str, hint: Any) -> pa.DataType:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # X | None: every column is nullable
        (hint,) = (a for a in typing.get_args(hint) if a is not type(None))
    if name in BYTES_AS:
        return BYTES_AS[name]
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return pa.list_(SPAN if inner is VersionSpan else _SCALARS[inner])
    return _SCALARS[hint]


def _render(topic: str) -> pa.Schema:
    fields: dict[str, pa.Field] = {f.name: f for f in HEAD}
    for event in CATALOGUE.values():
        if topic != event.TOPIC:
            continue
        hints = typing.get_type_hints(event)
        for f in msgspec.structs.fields(event):
            field = pa.field(f.name, _arrow_type(f.name, hints[f.name]))
            if not fields.setdefault(f.name, field).equals(field):
                raise TypeError(f"{topic}.{f.name} has two types: {fields[f.name].type}, {field.type}")
    for name in COUNTED.get(topic, {}):
        fields[name] = pa.field(name, pa.int32())
    return pa.schema(list(fields.values()))


SCHEMAS: dict[str, pa.Schema] = {topic: _render(topic) for topic in TOPICS}


def _lists(parts: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """list<int32> or list<float32> from little-endian bytes, one join and no loop over items."""
    item = np.dtype("<i4") if pa.types.is_int32(kind.value_type) else np.dtype("<f4")
    lengths = np.fromiter((len(p) // 4 if p else 0 for p in parts), np.int32, len(parts))
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(np.frombuffer(b"".join(p for p in parts if p), item))
    mask = pa.array([p is None for p in parts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    if field.name in BYTES_AS:
        return _lists(values, field.type)
    if pa.types.is_list(field.type) and field.type.value_type == SPAN:
        values = [v and [{"version": s.version, "start": s.start, "end": s.end} for s in v] for v in values]
    return pa.array(values, field.type)


def to_table(topic: str, pairs: Sequence[tuple[Record, Event]]) -> pa.Table:
    """Rows of the topic's table from records and their decoded events, in the given order."""
    schema = SCHEMAS[topic]
    head: dict[str, list[Any]] = {
        "event_id": [r.headers.event_id for r, _ in pairs],
        "type": [r.headers.type for r, _ in pairs],
        "log_partition": [r.partition for r, _ in pairs],
        "log_offset": [r.offset for r, _ in pairs],
        "appended_us": [r.appended_us for r, _ in pairs],
        "schema": [r.headers.schema for r, _ in pairs],
    }
    counted = COUNTED.get(topic, {})
    fields = _values([e for _, e in pairs], [f.name for f in schema if f.name not in {*head, *counted}])
    columns = []
    for field in schema:
        if field.name in head:
            columns.append(pa.array(head[field.name], field.type))
        elif field.name in counted:
            lists = fields[counted[field.name]]
            columns.append(pa.array([None if x is None else len(x) // 4 for x in lists], field.type))
        else:
            columns.append(_column(field, fields[field.name]))
    return pa.Table.from_arrays(columns, schema=schema)


def are_sound(rows: pa.Table) -> bool:
    """Whether every token id and log-probability of rows of `calls` is one: one pass over each column.

    What `ModelCalled.check_tokens` asks of one event, of many at once.
    """
    for name, kind in BYTES_AS.items():
        for chunk in rows[name].chunks:
            values = chunk.flatten().to_numpy()
            if pa.types.is_floating(kind.value_type):
                if not are_logprobs(values):
                    return False
            elif values.size and values.min() < 0:
                return False
    return True


def _values(events: Sequence[Event], names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The values of each field, None where an event has no such field."""
    if len({type(e) for e in events}) == 1 and len(names) > 1 and all(hasattr(events[0], n) for n in names):
        rows = map(operator.attrgetter(*names), events)  # a fifth of the time of getattr one by one
        return dict(zip(names, zip(*rows, strict=True), strict=True))
    return {name: [getattr(e, name, None) for e in events] for name in names}


def to_dead_letters(refused: Sequence[tuple[Record, str]]) -> pa.Table:
    """Rows of `dead_letters` from records and the reason each was refused for."""
    rows = [
        {
            "topic": r.topic,
            "log_partition": r.partition,
            "log_offset": r.offset,
            "appended_us": r.appended_us,
            "key": r.key,
            "event_id": r.headers.event_id,
            "type": r.headers.type,
            "schema": min(max(r.headers.schema, INT32_MIN), INT32_MAX),  # the reason says the number itself
            "value": r.value,
            "reason": reason[:REASON_CHARS_MAX],  # it may quote what is wrong
        }
        for r, reason in refused
    ]
    return pa.Table.from_pylist(rows, DEAD_LETTERS)
