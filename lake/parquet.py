"""The lake's Parquet files: sorted by group, row groups cut between groups, read row group by row group.

    groups   | g-07 g-07 g-07 | g-08 g-08 | g-09 ... g-09 | g-09 ... |
    a row group holds rows of one group; small neighbours share one where that costs a read little

A group is then read by its row groups alone, however many groups' rows came in one commit.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.durable import sync

ROW_GROUP_ROWS = 2000
ROW_GROUP_BYTES = 16 << 20
"""Of one row group, uncompressed: bounds the memory of whoever reads a row group at a time."""
SHARE_BYTES = 8192
"""Groups may share a row group up to here, uncompressed: a row group of 31 columns costs 4.5 KB in footer and
page headers and 1.2 ms to write, so that cutting finer reads and writes more, not less."""
ROW_BYTES = 32
"""What the scalar columns of a row come to, compressed."""
QUICK_ROWS = 100
"""Of a row group, on average; with fewer a file is written `quick`."""
FOOTERS_BYTES_MAX = 64 << 20

SUMS = "headrace.sums"
"""Key of a file's footer: {column: [sum, rows that are not null]} of the SUMMED columns that it has."""
SUMMED = ("n_context", "n_output")  # so that bytes per token are told from footers (lake.stats)
COMMIT_LEVEL, MERGE_LEVEL = 1, 3
"""Of zstd.  Token ids of real text (BPE-40k; row groups of 250 calls), a core under load, pyarrow 26:

    B/id; write and read in M/s    PLAIN zstd 1  0.71; 25, 47    zstd 3  0.64; 18, 122    zstd 6  0.57; 14, 94
    PLAIN lz4  1.02; 40, 144       uncompressed  4.01; 53, 93    BYTE_STREAM_SPLIT zstd 1  0.71; 41, 65
    DELTA_BINARY_PACKED zstd 1  1.64; 31, 134
    B/log-probability, random      PLAIN zstd 1  3.63; 41        BYTE_STREAM_SPLIT zstd 1  3.34; 36

So PLAIN, which every engine reads (Spark's vectorised reader has no BYTE_STREAM_SPLIT): level 1 where a
commit waits, 3 where files are merged.  A bf16 log-probability would be 1.75 B, split 1.31 B.
"""
UNIQUE = ("event_id",)  # a dictionary of what is there once is only larger
INDEXED = ("group_id", "execution_id", "log_offset", "appended_us")
"""Columns with statistics a row group: by these rows are looked for.  Statistics of others only cost."""
RANGED = ("group_id", "log_offset")
"""Columns whose range Delta keeps of each file."""
LOG_ORDER = ("log_partition", "log_offset")


def by_group(rows: pa.Table, *, log_order: bool = False) -> pa.Table:
    """Rows sorted by group (null last); within a group as they came, or in the order of the log."""
    names = ["group_id", *(LOG_ORDER if log_order else ())]
    keys = [(name, "ascending") for name in names if name in rows.column_names]
    if "group_id" not in rows.column_names or rows.num_rows < 2:
        return rows
    order = pc.sort_indices(rows.select([name for name, _ in keys]), sort_keys=keys).to_numpy()
    if np.array_equal(order, np.arange(len(order), dtype=order.dtype)):
        return rows
    return rows.combine_chunks().take(pa.array(order))


def weights(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of each row, uncompressed: of its lists and bytes, and ROW_BYTES for the rest."""
    total = np.full(rows.num_rows, ROW_BYTES, np.int64)
    for field in rows.schema:
        if pa.types.is_list(field.type):
            item = field.type.value_type
            width = item.bit_width // 8 if pa.types.is_primitive(item) else 16
            lengths = pc.list_value_length(rows[field.name])
        elif field.type == pa.binary():
            width, lengths = 1, pc.binary_length(rows[field.name])
        else:
            continue
        total += width * np.asarray(pc.fill_null(lengths, 0), np.int64)
    return total


def _pieces(start: int, stop: int, before: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """A range of rows in parts of at most ROW_GROUP_ROWS rows and about ROW_GROUP_BYTES bytes."""
    while start < stop:
        fits = int(np.searchsorted(before, before[start] + ROW_GROUP_BYTES, "right")) - 1
        end = min(stop, start + ROW_GROUP_ROWS, max(fits, start + 1))
        yield start, end
        start = end


def group_edges(rows: pa.Table) -> list[int]:
    """Where runs of rows of one group begin, and the number of rows: [0, 3, 5] for a, a, a, b, b."""
    ids = rows["group_id"].combine_chunks().dictionary_encode()
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    codes = np.asarray(pc.fill_null(ids.indices, -1))
    return [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), rows.num_rows]


def row_groups(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Where to cut rows that are sorted by group: (first row, row after the last) of each row group."""
    before = np.concatenate([[0], np.cumsum(weights(rows))])
    if "group_id" not in rows.column_names:
        yield from _pieces(0, rows.num_rows, before)
        return
    edges = group_edges(rows)
    start = 0
    for low, high in itertools.pairwise(edges):
        if low > start and (high - start > ROW_GROUP_ROWS or before[high] - before[start] > SHARE_BYTES):
            yield from _pieces(start, low, before)
            start = low
    yield from _pieces(start, rows.num_rows, before)


class FileWriter:
    """Writes one file, row group by row group; durable when `close` returns (local files)."""

    def __init__(
        self,
        fs: Any,
        path: str,
        schema: pa.Schema,
        *,
        local: bool,
        quick: bool = False,
        level: int = COMMIT_LEVEL,
    ) -> None:
        """`quick`: for many small row groups, see `is_quick`; `level`: of zstd."""  # fmt: skip
        self._local, self.path = local, path
        self._sink = pa.OSFile(path, "wb") if local else fs.open(path, "wb")
        self._folder = os.path.dirname(path)
        self._sums: dict[str, tuple[int, int]] = {}
        self.kept: dict[str, Any] = {"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": {}}
        plain = {f.name for f in schema if quick and not _is_wide(f.type)}
        leaves = [leaf for f in schema if f.name not in plain for leaf in _leaves(f.name, f.type)]
        strings = [f.name for f in schema if f.type == pa.string() and f.name not in UNIQUE]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=dict.fromkeys(leaves, "zstd") | dict.fromkeys(plain, "none"),
            compression_level=dict.fromkeys(leaves, level),
            use_dictionary=False if quick else strings,
            write_statistics=[name for name in INDEXED if name in schema.names],
            store_schema=False,  # the table's schema says more; 2.7 KB a file
        )

    def write(self, rows: pa.Table) -> None:
        """Append rows, sorted by group, of groups that come after those written."""
        rows = rows.combine_chunks()
        self._keep(rows)
        for start, stop in row_groups(rows):
            self._writer.write_table(rows.slice(start, stop - start))
        for name in SUMMED:
            if name in rows.column_names:
                column, (total, count) = rows[name], self._sums.get(name, (0, 0))
                more = pc.sum(column).as_py() or 0
                self._sums[name] = (total + more, count + len(column) - column.null_count)

    def _keep(self, rows: pa.Table) -> None:
        """What Delta keeps of a file (`kept`): rows, and the range of group ids, by which it is pruned."""
        lows, highs = self.kept["minValues"], self.kept["maxValues"]
        self.kept["numRecords"] += rows.num_rows
        for name in RANGED:
            found = pc.min_max(rows[name]).as_py() if name in rows.column_names else {"min": None}
            if found["min"] is not None:
                lows[name] = min(found["min"], lows.get(name, found["min"]))
                highs[name] = max(found["max"], highs.get(name, found["max"]))

    def close(self) -> int:
        """The size of the file in bytes."""
        if self._sums:
            self._writer.add_key_value_metadata({SUMS: json.dumps(self._sums)})
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        if self._local:
            sync(self.path)
            sync(self._folder)
        return size

    def abandon(self) -> None:
        """Close what can be closed after a failure; the file is not to be used."""
        for part in (self._writer, self._sink):
            with contextlib.suppress(Exception):  # the first failure is told, not its echo
                part.close()


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or kind == pa.binary())


def _leaves(path: str, kind: pa.DataType) -> list[str]:
    """The paths of the Parquet columns of a field: options are told by these, not by its name."""
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{path}.{field.name}", field.type)]
    return [path]


def is_quick(rows: pa.Table) -> bool:
    """Whether the row groups of a file would be small: a column of one then costs more than its bytes.

    Such a file has dictionaries and compressed scalars only after `headrace lake optimize`: 48 row groups
    of 10 rows then take 39 ms to write instead of 99.
    """
    return bool(rows.num_rows < QUICK_ROWS * sum(1 for _ in row_groups(rows)))


@dataclass
class Reads:
    """What was read: to tell how much more than was asked for."""

    files: int = 0
    row_groups: int = 0
    rows: int = 0
    token_bytes: int = 0  # of token ids and log-probabilities, uncompressed
    chunk_bytes: int = 0  # of column chunks, as they lie in the files
    footers: int = 0
    footer_bytes: int = 0


@dataclass(frozen=True)
class Footer:
    """A file's metadata, and the range of group ids of each row group (None: not known)."""

    metadata: Any
    ranges: tuple[tuple[str, str] | None, ...]

    def hits(self, groups: Sequence[str] | None) -> list[int]:
        """The row groups that may hold rows of these groups (sorted; None: all)."""
        return [i for i, r in enumerate(self.ranges) if groups is None or r is None or holds(r, groups)]


def holds(low_high: tuple[str, str], groups: Sequence[str]) -> bool:
    """Whether one of these groups (sorted) lies in the range."""
    at = bisect.bisect_left(groups, low_high[0])
    return at < len(groups) and groups[at] <= low_high[1]


def _ranges(metadata: Any) -> tuple[tuple[str, str] | None, ...]:
    names: list[str] = metadata.schema.names
    parts: int = metadata.num_row_groups
    if "group_id" not in names:
        return (None,) * parts
    at = names.index("group_id")  # leaves of lists have names of their own, such as `element`
    found: list[tuple[str, str] | None] = []
    for i in range(parts):
        statistics = metadata.row_group(i).column(at).statistics
        known = statistics is not None and statistics.has_min_max
        found.append((statistics.min, statistics.max) if known else None)
    return tuple(found)


class FileReader:
    """Reads files of one table; a file never changes, so its footer is read once."""

    def __init__(self, fs: Any, *, local: bool) -> None:
        self._fs, self._local = fs, local
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._footers_bytes = 0
        self.reads = Reads()

    def _open(self, path: str) -> Any:
        # an object store is asked for the ranges that Arrow wants, without reading ahead
        return pa.OSFile(path) if self._local else self._fs.open(path, "rb", cache_type="none")

    def _remember(self, path: str, metadata: Any) -> Footer:
        footer = Footer(metadata, _ranges(metadata))
        self._footers[path] = footer
        self._footers_bytes += metadata.serialized_size
        self.reads.footers += 1
        self.reads.footer_bytes += metadata.serialized_size
        while self._footers_bytes > FOOTERS_BYTES_MAX and len(self._footers) > 1:
            _, old = self._footers.popitem(last=False)
            self._footers_bytes -= old.metadata.serialized_size
        return footer

    def footer(self, path: str) -> Footer:
        """The footer of a file, read where it is not remembered."""
        if path not in self._footers:
            with self._open(path) as source:
                self._remember(path, pq.read_metadata(source))
        self._footers.move_to_end(path)
        return self._footers[path]

    def read(
        self,
        path: str,
        schema: pa.Schema,
        groups: Sequence[str] | None = None,
        parts: Sequence[int] | None = None,
    ) -> pa.Table:
        """The columns of `schema` (null where the file has none) of a file's row groups.

        groups   only row groups that may hold these groups (sorted); rows of others may come along
        parts    only these row groups
        """  # fmt: skip
        known = self._footers.get(path)
        if known is not None and not known.hits(groups):
            return schema.empty_table()
        with self._open(path) as source:
            file = pq.ParquetFile(source, metadata=known and known.metadata, pre_buffer=True)
            footer = known or self._remember(path, file.metadata)
            wanted = footer.hits(groups) if parts is None else list(parts)
            if not wanted:
                return schema.empty_table()
            there = set(file.schema_arrow.names)
            names = [name for name in schema.names if name in there]
            found = file.read_row_groups(wanted, columns=names, use_threads=False)
        self._count(footer, wanted, set(names), found.num_rows)
        return conform(found, schema)

    def _count(self, footer: Footer, parts: Sequence[int], names: set[str], rows: int) -> None:
        self.reads.files += 1
        self.reads.row_groups += len(parts)
        self.reads.rows += rows
        for part in parts:
            group = footer.metadata.row_group(part)
            for at in range(group.num_columns):
                chunk = group.column(at)
                name, *inner = chunk.path_in_schema.split(".")
                if name not in names:
                    continue
                self.reads.chunk_bytes += chunk.total_compressed_size
                if len(inner) == 2 and chunk.physical_type in ("INT32", "FLOAT"):  # name.list.element
                    self.reads.token_bytes += 4 * chunk.num_values


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns; those that they have not are null."""
    there = set(rows.column_names)
    columns = []
    for field in schema:
        column = rows[field.name] if field.name in there else pa.nulls(rows.num_rows, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
