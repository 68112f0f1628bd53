"""How large a lake is: files, rows and bytes of each table, and bytes per token of the calls.

    found = stats("/runs/demo/lake")
    found.tables[0].rows, found.calls.bytes_per_token["output_logprobs"]

Read from the footers of the files only: sizes of column chunks, counts of values.  No column is read,
so that a lake of a terabyte on an object store takes two small requests a file, FOOTERS_AT_ONCE at once.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow.parquet as pq

from lake.layout import NotARun
from lake.optimize import table_names
from lake.parquet import SUMS
from lake.store import Store, Table
from lake.table import filesystem, is_local

FOOTERS_AT_ONCE = 16
FOOTER_BYTES = 64 << 10  # of a file's end, read at once; a longer footer takes one more read
SMALL_FILE_BYTES = 8 << 20
"""Opening a file of an object store takes as long as reading some 8 MiB of it."""
SMALL_FILES_MAX = 32
"""Of one table, before `headrace lake optimize` is worth its time."""
TOKEN_COLUMNS = ("context_ids", "output_ids", "output_logprobs")
LISTS = {"context_ids": "n_context", "output_ids": "n_output"}
"""Lists of tokens, and the column that counts each: its sum stands in the footer (lake.parquet)."""


class TableStats(msgspec.Struct, frozen=True):
    """One table; `table` is its path in the lake, such as `events/calls` or `sets/default/weights`."""

    table: str
    version: int
    files: int
    small_files: int
    row_groups: int
    rows: int
    bytes: int
    bytes_per_row: float | None


class CallStats(msgspec.Struct, frozen=True):
    """The tokens of `events/calls`.

    unique_tokens    each token once: what is new in each context, and every output
    sampled_tokens   the outputs
    exact            False: of some files, written by an earlier version, the footers hold no sums; there
                     an empty or absent list counts as one token, and every row as a call
    bytes_per_token  of a unique token: context_ids, output_ids, output_logprobs, rest, all
    """

    calls: int
    unique_tokens: int
    sampled_tokens: int
    exact: bool
    bytes_per_token: dict[str, float]


class LakeStats(msgspec.Struct, frozen=True):
    """A whole lake.  `hint` says what to do about it, "" where there is nothing."""

    lake: str
    tables: list[TableStats]
    files: int
    small_files: int
    rows: int
    bytes: int
    dead_letters: int
    calls: CallStats | None
    hint: str


class _Footer(msgspec.Struct, frozen=True):
    """What a file's footer says; of a file that is not of calls, no tokens."""

    size: int
    rows: int
    row_groups: int
    columns: dict[str, int]
    tokens: dict[str, int]
    calls: int
    exact: bool


def _footer(fs: Any, path: str) -> _Footer:
    options = {} if is_local(fs) else {"cache_type": "none"}  # nothing is read ahead
    with fs.open(path, "rb", **options) as source:
        size = source.seek(0, 2)
        metadata = pq.ParquetFile(source, pre_buffer=False).metadata
    columns: Counter[str] = Counter()
    values: Counter[str] = Counter()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema.split(".")[0]
            columns[name] += chunk.total_compressed_size
            values[name] += chunk.num_values
    sums = json.loads((metadata.metadata or {}).get(SUMS.encode(), "{}"))
    counts = {name: sums.get(LISTS[name], (values[name], metadata.num_rows)) for name in LISTS}
    return _Footer(
        size=size,
        rows=metadata.num_rows,
        row_groups=metadata.num_row_groups,
        columns=dict(columns),
        tokens={name: total for name, (total, _) in counts.items()},
        calls=counts["output_ids"][1],
        exact=LISTS.keys() <= columns.keys() and set(LISTS.values()) <= sums.keys(),
    )


def _of_table(name: str, table: Table, footers: list[_Footer]) -> TableStats:
    rows, size = sum(f.rows for f in footers), sum(f.size for f in footers)
    return TableStats(
        table=name,
        version=table.version,
        files=len(footers),
        small_files=sum(f.size < SMALL_FILE_BYTES for f in footers),
        row_groups=sum(f.row_groups for f in footers),
        rows=rows,
        bytes=size,
        bytes_per_row=size / rows if rows else None,
    )


def _of_calls(footers: list[_Footer]) -> CallStats:
    tokens: Counter[str] = Counter()
    columns: Counter[str] = Counter()
    for footer in footers:
        tokens.update(footer.tokens)
        columns.update(footer.columns)
    unique, size = tokens.total(), sum(f.size for f in footers)
    each = {name: columns[name] for name in TOKEN_COLUMNS}
    each |= {"rest": size - sum(each.values()), "all": size}
    return CallStats(
        calls=sum(f.calls for f in footers),
        unique_tokens=unique,
        sampled_tokens=tokens["output_ids"],
        exact=all(f.exact for f in footers),
        bytes_per_token={name: n / unique for name, n in each.items()} if unique else {},
    )


def stats(root: str) -> LakeStats:
    """The sizes of the lake at `root`, a folder or a URL.  Raises NotARun where there is no table."""
    store = Store(root)
    fs, _ = filesystem(root)
    tables: list[TableStats] = []
    calls = None
    with ThreadPoolExecutor(FOOTERS_AT_ONCE, thread_name_prefix="footers") as threads:
        for name in table_names(store):
            table = store.existing(name)
            if table is None:
                continue
            footers = list(threads.map(lambda path: _footer(fs, path), table.files()))
            tables.append(_of_table(name, table, footers))
            if name == "events/calls":
                calls = _of_calls(footers)
    if not tables:
        raise NotARun(f"{root} is no lake: it has no tables; `headrace run demo` makes a run with one")
    many = [t for t in tables if t.small_files > SMALL_FILES_MAX]
    hint = ", ".join(f"{t.table} has {t.small_files} files under {SMALL_FILE_BYTES >> 20} MiB" for t in many)
    return LakeStats(
        lake=root,
        tables=tables,
        files=sum(t.files for t in tables),
        small_files=sum(t.small_files for t in tables),
        rows=sum(t.rows for t in tables),
        bytes=sum(t.bytes for t in tables),
        dead_letters=sum(t.rows for t in tables if t.table == "events/dead_letters"),
        calls=calls,
        hint=f"{hint}: `headrace lake optimize` makes few of them" if hint else "",
    )
