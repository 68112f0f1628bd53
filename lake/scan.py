"""Rows of an event table in the order of their log offsets, whatever order its files have; streamed.

    for part in in_offset_order(table, {"log_partition": 2}): ...

A bucket is a range of offsets of about BUCKET_BYTES.  Row groups are read once each, in the order of
their first offset; their rows fall into buckets, and a bucket is given out, sorted, when no later row
group can hold rows of it.  Rows of later buckets wait in memory while there is room, else in files.  A
lake that is in order nearly everywhere, as a worker writes it, needs no files; one that was rewritten
in another order needs at most the room of its rows.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.parquet import conform
from lake.table import Table, filesystem

BUCKET_BYTES = 64 << 20
ROWS = 1000
"""Of one part, at most: 12 MB of calls of 12 KB."""
CELL = 64
"""Offsets whose sizes are told apart when buckets are cut."""


class _Piece(NamedTuple):
    """A row group that holds wanted rows, and the lowest offset of those."""

    low: int
    path: str
    group: int


def in_offset_order(
    table: Table, where: Mapping[str, Any], *, spill: str | None = None, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[pa.Table]:
    """The rows whose columns equal `where`, by log_offset, in parts of at most ROWS rows.

    Memory: two buckets and a row group.  Disk: what waits, in a folder under `spill` (None: the
    system's temporary folder), which is gone at the end.
    """
    fs = filesystem(table.uri)[0]
    pieces, sizes = _plan(fs, table, where)
    cuts = _cuts(sizes, bucket_bytes)
    with tempfile.TemporaryDirectory(prefix="headrace-sort-", dir=spill) as folder:
        waiting = _Waiting(Path(folder), bucket_bytes)
        done = 0
        for piece in pieces:
            while done < len(cuts) and cuts[done] <= piece.low:
                yield from _parts(waiting.take(done))
                done += 1
            with fs.open(piece.path, "rb") as source:
                rows = pq.ParquetFile(source).read_row_group(piece.group)
            rows = conform(rows.filter(_matches(rows, where)), table.schema)
            for bucket, part in _split(rows, cuts):
                waiting.put(bucket, part, now=bucket == done)
        for bucket in range(done, len(cuts) + 1):
            yield from _parts(waiting.take(bucket))


def _plan(fs: Any, table: Table, where: Mapping[str, Any]) -> tuple[list[_Piece], Counter[int]]:
    """The row groups with wanted rows by their lowest offset, and about how many bytes each cell has."""
    pieces: list[_Piece] = []
    sizes: Counter[int] = Counter()
    for path in table.files():
        with fs.open(path, "rb") as source:
            file = pq.ParquetFile(source)
            for group in range(file.num_row_groups):
                meta = file.metadata.row_group(group)
                if not meta.num_rows or _excluded(meta, where):
                    continue
                rows = file.read_row_group(group, columns=[*where, "log_offset"])
                offsets = rows.filter(_matches(rows, where))["log_offset"]
                if not len(offsets):
                    continue
                pieces.append(_Piece(pc.min(offsets).as_py(), path, group))
                for cell in pc.value_counts(pc.divide(offsets, CELL)):
                    sizes[cell["values"].as_py()] += (
                        cell["counts"].as_py() * meta.total_byte_size // meta.num_rows
                    )
    return sorted(pieces), sizes


def _excluded(meta: Any, where: Mapping[str, Any]) -> bool:
    """Whether the statistics of a row group say that it has no wanted row."""
    for index in range(meta.num_columns):
        column = meta.column(index)
        wanted, known = where.get(column.path_in_schema), column.statistics
        if wanted is None or known is None or not known.has_min_max:
            continue
        if not known.min <= wanted <= known.max:
            return True
    return False


def _matches(rows: pa.Table, where: Mapping[str, Any]) -> pa.ChunkedArray:
    mask = pa.chunked_array([pa.repeat(True, rows.num_rows)])
    for name, value in where.items():
        mask = pc.and_(mask, pc.fill_null(pc.equal(rows[name], value), fill_value=False))
    return mask


def _cuts(sizes: Counter[int], bucket_bytes: int) -> list[int]:
    """The offsets at which one bucket ends and the next begins."""
    cuts, room = [], bucket_bytes
    for cell in sorted(sizes):
        if room < bucket_bytes and sizes[cell] > room:
            cuts.append(cell * CELL)
            room = bucket_bytes
        room -= sizes[cell]
    return cuts


def _split(rows: pa.Table, cuts: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    buckets = [bisect_right(cuts, offset) for offset in rows["log_offset"].to_pylist()]
    if len(set(buckets)) == 1:
        yield buckets[0], rows
        return
    numbers = pa.array(buckets)
    for bucket in sorted(set(buckets)):
        yield bucket, rows.filter(pc.equal(numbers, bucket))


def _parts(rows: pa.Table | None) -> Iterator[pa.Table]:
    if rows is None:
        return
    rows = rows.sort_by("log_offset")
    for start in range(0, rows.num_rows, ROWS):
        yield rows.slice(start, ROWS)


class _Waiting:
    """Rows of buckets that are not complete yet, in memory up to a bound, else in files."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._memory: dict[int, list[pa.Table]] = {}
        self._files: dict[int, list[Path]] = {}
        self._held = self._written = 0

    def put(self, bucket: int, rows: pa.Table, *, now: bool) -> None:
        """Keep rows of a bucket; `now`: it is the next to be taken."""
        if not now and self._held + rows.nbytes > self._bytes_max:
            path = self._folder / f"{self._written}.arrow"
            self._written += 1
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, rows.schema, options=options) as file,
            ):
                file.write_table(rows)
            self._files.setdefault(bucket, []).append(path)
            return
        self._held += rows.nbytes
        self._memory.setdefault(bucket, []).append(rows)

    def take(self, bucket: int) -> pa.Table | None:
        """Everything of a bucket; None where there is nothing."""
        parts = self._memory.pop(bucket, [])
        self._held -= sum(rows.nbytes for rows in parts)
        for path in self._files.pop(bucket, []):
            with pa.OSFile(str(path), "rb") as source:
                parts.append(pa.ipc.open_file(source).read_all())
            path.unlink()
        return pa.concat_tables(parts) if parts else None
