"""Files of raw calls for imports, and what an import must make of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.matching import Matcher
from lake.events import ModelCalled
from lake.query import open_lake
from lake.rows import to_events
from lake.store import Store
from lake.tables import SCHEMAS

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("execution_id", pa.string()),
        ("call_id", pa.int64()),
        ("role", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
        ("output_logprobs", pa.list_(pa.float32())),
        ("version", pa.int64()),
        ("finish_reason", pa.string()),
    ]
)


def call(
    execution: str, number: int, input_ids: Sequence[int], output_ids: Sequence[int], **more: Any
) -> Row:
    """A row with log-probabilities; executions `g/0`, `g/1` are of the group `g`."""
    return {
        "group_id": execution.partition("/")[0],
        "execution_id": execution,
        "call_id": number,
        "input_ids": list(input_ids),
        "output_ids": list(output_ids),
        "output_logprobs": [-0.5] * len(output_ids),
    } | more


def conversation(execution: str, calls: int, seed: int = 0) -> list[Row]:
    """Calls that extend each other, the last but one tried twice."""
    rows, history = [], [seed, 1, 2]
    for number in range(calls):
        output = [10 * seed + number, 7]
        rows.append(call(execution, number, history, output, version=3 + number % 2))
        if number != calls - 2:
            history = [*history, *output, 5, number]
    return rows


def group(name: str, executions: int, calls: int = 4) -> list[Row]:
    """The calls of a group, row by row of all its executions in turn."""
    each = [conversation(f"{name}/{e}", calls, e + 1) for e in range(executions)]
    return [row for rows in zip(*each, strict=True) for row in rows]


def write_lines(path: Path, rows: Iterable[Row | bytes], codec: str | None = None) -> Path:
    """JSON lines; bytes stand as they are."""
    data = b"".join((r if isinstance(r, bytes) else msgspec.json.encode(r)) + b"\n" for r in rows)
    if codec is None:
        path.write_bytes(data)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.CompressedOutputStream(sink, codec) as file:
            file.write(data)
    return path


def write_parquet(path: Path, rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path, row_group_size=7)
    return path


def calls_in(lake: str | Path) -> dict[str, list[ModelCalled]]:
    """execution -> its calls in order, as the lake has them."""
    table = Store(str(lake)).table("events/calls", SCHEMAS["calls"]).read()
    found: dict[str, list[ModelCalled]] = {}
    for event in to_events("calls", table):
        assert isinstance(event, ModelCalled)
        found.setdefault(event.execution_id, []).append(event)
    return {e: sorted(calls, key=lambda c: c.call_id) for e, calls in found.items()}


def check_as_matched(lake: str | Path, rows: Iterable[Row]) -> None:
    """Each execution in the lake is its rows, delta coded by a matcher of its own; nothing else is there."""
    matchers: dict[str, Matcher] = {}
    found, places = calls_in(lake), dict[str, int]()
    for row in rows:
        execution = row["execution_id"]
        number = places[execution] = places.get(execution, -1) + 1
        matcher = matchers.setdefault(execution, Matcher())
        parent, shared = matcher.insert(number, row["input_ids"], row["output_ids"])
        event = found[execution][number]
        assert (event.call_id, event.parent_call_id, event.shared_len) == (number, parent, shared)
        assert event.context_ids == pa.array(row["input_ids"][shared:], pa.int32()).to_numpy().tobytes()
        assert event.output_ids == pa.array(row["output_ids"], pa.int32()).to_numpy().tobytes()
        assert event.role == (row.get("role") or "main")
        event.check()
    assert {e: len(calls) for e, calls in found.items()} == {e: n + 1 for e, n in places.items()}


def contents(lake: str | Path) -> dict[str, list[Row]]:
    """Every row of the event tables, in the order of their offsets."""
    store, found = Store(str(lake)), {}
    for name in store.names("events"):
        table = store.existing(f"events/{name}")
        assert table is not None
        rows = table.read().sort_by([("topic", "ascending")] if name == "dead_letters" else "log_offset")
        found[name] = rows.to_pylist()
    return found


def audit(lake: str | Path) -> dict[str, int]:
    """The audits that found something."""
    opened = open_lake(lake)
    try:
        return {name: table.num_rows for name, table in opened.audit().items() if table.num_rows}
    finally:
        opened.close()
