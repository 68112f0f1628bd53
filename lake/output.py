"""The answer to a query as a table for people, or as CSV, JSON or Parquet, written as its rows are found.

    answers = Answers(lake, runner, form="csv")
    answers.answer("from calls", sink)             a result of any size takes bounded memory

Values without a form of their own: in JSON bytes are base64 and what is no finite number is null; in CSV
lists and structs are JSON, and bytes base64; an interval is text everywhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import click
import msgspec
import pyarrow as pa

from lake.output_columns import csv_columns, json_row, parquet_columns
from lake.query import Lake, Shape, plain
from lake.stopping import Runner
from lake.terminal import show_table

FORMS = ("table", "csv", "json", "parquet")
LIMIT = 200
SHAPES: dict[str, Shape | None] = {
    "table": None, "csv": csv_columns, "json": json_row, "parquet": parquet_columns,
}  # fmt: skip
ITEMS_SHOWN = 8
CHARS_SHOWN = 2000
GROUP_ROWS, GROUP_BYTES = 100_000, 64 << 20  # of a row group of Parquet
PLAN = ["explain_key", "explain_value"]  # the columns of EXPLAIN

Batches = Iterator[pa.RecordBatch]


def standard_output() -> BinaryIO:
    """Standard output for bytes, after what was written to it as text."""
    sys.stdout.flush()
    return sys.stdout.buffer


class Answered(msgspec.Struct, frozen=True):
    """What was written: `rows`, and whether there were `more`."""

    rows: int
    more: bool = False


class Answers:
    """How queries on a lake are answered; the attributes may be changed between two of them."""

    def __init__(
        self, lake: Lake, runner: Runner, form: str = "table", limit: int = LIMIT, timing: bool = False
    ) -> None:
        """`form` is one of FORMS, `limit` the rows of a table."""
        self.lake, self.runner = lake, runner
        self.form, self.limit, self.timing = form, limit, timing

    def answer(self, query: str, sink: BinaryIO) -> Answered:
        """Run one query and write its rows; a table goes to standard output.

        Raises QueryError and QueryStopped, when rows may have been written already.
        """
        began = time.monotonic()
        self.runner.begin()
        schema, found = self.runner.call(lambda: self.lake.stream(query, SHAPES[self.form]))
        batches = self.runner.each(found)
        done = (
            _table(schema, batches, self.limit)
            if self.form == "table"
            else WRITERS[self.form](schema, batches, sink)
        )
        if done.more:
            self.runner.call(found.close)  # type: ignore[attr-defined]  # a generator: the query ends here
            click.echo(
                f"there are more than these {done.rows}: a higher limit shows them; csv and json have all",
                err=True,
            )
        if self.timing:
            rows = f"{done.rows} row" + ("s" if done.rows != 1 else "")
            click.echo(f"{rows} in {time.monotonic() - began:.3f} s", err=True)
        return done


def _table(schema: pa.Schema, batches: Batches, limit: int) -> Answered:
    if schema.names == PLAN:
        plans = [text for batch in batches for text in batch.column(1).to_pylist()]
        click.echo("\n".join(plans))
        return Answered(len(plans))
    shown: list[dict[str, Any]] = []
    more = False
    names = unique(schema.names)
    for batch in batches:
        part = batch.slice(0, limit - len(shown))
        columns = [_cells(column) for column in part.columns]
        shown += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if more := part.num_rows < batch.num_rows:
            break
    show_table(shown)
    return Answered(len(shown), more)


def unique(names: Sequence[str]) -> list[str]:
    """Names of columns, the second of a name as `name_1`."""
    taken: list[str] = []
    for name in names:
        free, number = name, 0
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.append(free)
    return taken


def _cells(column: pa.Array) -> list[Any]:
    """The values of a column as a table shows them: of a long list its beginning and its length."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return [_items(value) if value.is_valid else None for value in column]
    values = [plain(value) for value in column.to_pylist()]
    return [_short(value) if isinstance(value, str) else value for value in values]


def _items(value: Any) -> str:
    held = value.values
    first = [plain(item) for item in held.slice(0, ITEMS_SHOWN).to_pylist()]
    if len(held) <= ITEMS_SHOWN:
        return _short(str(first))
    return _short(str(first)[:-1]) + f", ...] {len(held)} items"


def _short(text: str) -> str:
    return f"{text[:CHARS_SHOWN]}... {len(text)} characters" if len(text) > CHARS_SHOWN else text


def _csv(schema: pa.Schema, batches: Batches, sink: BinaryIO) -> Answered:
    from pyarrow import csv

    rows = 0
    with csv.CSVWriter(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return Answered(rows)


def _json(_schema: pa.Schema, batches: Batches, sink: BinaryIO) -> Answered:
    """One array of objects, a line each."""
    rows = 0
    for batch in batches:
        for text in batch.column(0).to_pylist():
            sink.write((",\n" if rows else "[").encode() + text.encode())
            rows += 1
    sink.write(b"]\n" if rows else b"[]\n")
    return Answered(rows)


def _parquet(schema: pa.Schema, batches: Batches, sink: BinaryIO) -> Answered:
    from pyarrow import parquet

    rows = 0
    schema = pa.schema([f.with_name(n) for f, n in zip(schema, unique(schema.names), strict=True)])
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in _groups(batches):
            table = pa.Table.from_batches(group).rename_columns(schema.names)
            writer.write_table(table, row_group_size=GROUP_ROWS)
            rows += table.num_rows
    return Answered(rows)


def _groups(batches: Batches) -> Iterator[list[pa.RecordBatch]]:
    """Batches together until they make a row group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield held
            held, rows, size = [], 0, 0
    if held:
        yield held


WRITERS: dict[str, Callable[[pa.Schema, Batches, BinaryIO], Answered]] = {
    "csv": _csv, "json": _json, "parquet": _parquet,
}  # fmt: skip
