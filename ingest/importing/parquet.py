"""Rows of Parquet: ids go from Arrow's buffers to the matcher without a list of numbers.

Columns as `ingest.importing.rows` says; ids as lists of any integers, log-probabilities of any floats.
Memory: BATCH_ROWS rows, and what Parquet reads ahead of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.importing.rows import (
    CannotImport,
    Ids,
    Place,
    RawCall,
    Refused,
    RowRefused,
    Score,
    checked_call,
    checked_score,
)

BATCH_ROWS = 32
"""At contexts of 100k tokens 13 MB."""
READ_BYTES = 1 << 20
ID_MAX = 2**31 - 1
NEEDED = ("group_id", "execution_id", "call_id", "input_ids", "output_ids")
SCALARS = ("group_id", "execution_id", "call_id", "role", "version", "finish_reason")
SCORES = ("execution_id", "score", "status", "group_id")

Watch = Callable[[int], None]


def is_parquet(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def parquet_calls(path: str, watch: Watch) -> Iterator[RawCall | Refused]:
    """The calls of a Parquet file.  Raises CannotImport for one without the columns of a call."""
    for start, batch in _batches(path, NEEDED, (*SCALARS, "output_logprobs"), watch):
        scalars = [_scalars(batch, name) for name in SCALARS]
        lists = {n: _Lists(path, n, _column(batch, n)) for n in ("input_ids", "output_ids")}
        logprobs = _Lists(path, "output_logprobs", _column(batch, "output_logprobs"))
        for at, values in enumerate(zip(*scalars, strict=True)):
            place, fields = Place(path, start + at + 1), dict(zip(SCALARS, values, strict=True))
            try:
                inputs, outputs = lists["input_ids"].ids(at), lists["output_ids"].ids(at)
                yield checked_call(place, fields, inputs, outputs, logprobs.row(at))
            except RowRefused as error:
                yield Refused(place, str(error), json.dumps(fields, default=str).encode())


def parquet_scores(path: str, watch: Watch) -> Iterator[Score | Refused]:
    """The scores of a Parquet file."""
    for start, batch in _batches(path, ("execution_id",), SCORES, watch):
        for at, values in enumerate(zip(*(_scalars(batch, name) for name in SCORES), strict=True)):
            place, fields = Place(path, start + at + 1), dict(zip(SCORES, values, strict=True))
            try:
                yield checked_score(place, fields)
            except RowRefused as error:
                yield Refused(place, str(error), json.dumps(fields, default=str).encode())


def _batches(
    path: str, needed: tuple[str, ...], wanted: tuple[str, ...], watch: Watch
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(rows before it, batch) of the columns that there are."""
    try:
        file = pq.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise CannotImport(f"{path} is no whole Parquet file: {error}") from error
    with file:
        there = set(file.schema_arrow.names)
        if missing := [name for name in needed if name not in there]:
            raise CannotImport(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(sorted(there))}"
            )
        columns = [name for name in dict.fromkeys((*needed, *wanted)) if name in there]
        done = read = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).total_byte_size
            for batch in file.iter_batches(BATCH_ROWS, [group], columns, use_threads=False):
                yield done, batch
                done += batch.num_rows
            read += size
            watch(read)


def parquet_bytes(path: str) -> int:
    """What a reader of a Parquet file tells its watcher at the end."""
    meta = pq.read_metadata(path)
    return sum(meta.row_group(g).total_byte_size for g in range(meta.num_row_groups))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _scalars(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = _column(batch, name)
    return [None] * batch.num_rows if column is None else column.to_pylist()


class _Lists:
    """One column of lists of numbers, by row."""

    def __init__(self, path: str, name: str, column: pa.Array | None) -> None:
        self._name, self._there = name, np.zeros(0, bool)
        if column is None or pa.types.is_null(column.type):
            return
        kind = column.type.value_type if hasattr(column.type, "value_type") else column.type
        floats = name == "output_logprobs"
        right = pa.types.is_floating(kind) if floats else pa.types.is_integer(kind)
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) or not right:
            wanted = "numbers" if floats else "integers"
            raise CannotImport(f"{path}: column {name} is {column.type}, a list of {wanted} is needed")
        self._there = np.asarray(column.is_valid())
        self._offsets = np.asarray(column.offsets).tolist()
        self._values = column.values.to_numpy(zero_copy_only=False) if not column.values.null_count else None
        self._nulls = column.values

    def row(self, at: int) -> Any:
        """The numbers of a row, a view; None where it has none.  Raises RowRefused for a null among them."""
        if at >= len(self._there) or not self._there[at]:
            return None
        start, end = self._offsets[at], self._offsets[at + 1]
        if self._values is not None:
            return self._values[start:end]
        part = self._nulls.slice(start, end - start)
        if part.null_count:
            raise RowRefused(f"{self._name}: an item is null")
        return part.to_numpy(zero_copy_only=False)

    def ids(self, at: int) -> Ids:
        """The ids of a row.  Raises RowRefused where it has none, or one is none."""
        values = self.row(at)
        if values is None:
            raise RowRefused(f"{self._name} is missing")
        if values.size:
            low, high = int(values.min()), int(values.max()) if values.dtype != np.int32 else 0
            if low < 0 or high > ID_MAX:
                wrong = f"{low} is negative" if low < 0 else f"{high} is over {ID_MAX}"
                raise RowRefused(f"{self._name}: item {wrong}")
        ids: Ids = values.astype(np.int32, copy=False)
        return ids
