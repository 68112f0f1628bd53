"""Fewer files in a lake, while its worker goes on: compaction, vacuum, checkpoints.

    small neighbours --merge--> one file (by group, then in the order of the log) --one commit--> table
    files that nothing names for longer than the retention --vacuum--> gone
    log --checkpoint--> one file to open the table by; commits older than the table keeps are removed

Neighbours in commit order only, so that a table is read in the order it was; a file of half the target
or more is left as it is.  A second run finds nothing to do.  A merge holds PORTION_BYTES of rows, or the
rows of one group of the files that are merged.  Killed at any point it leaves at most a file that no
commit names, which a later vacuum takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lake import failure
from lake.parquet import by_group
from lake.portions import portions
from lake.store import Store, StoreError
from lake.store_errors import telling
from lake.table import FileEntry, Table
from lake.vacuum import RETAIN_H, checkpoint, delete, expired

TARGET_BYTES = 128 << 20
PORTION_BYTES = 64 << 20
DISTURBED_MAX = 20
"""Merges of one table given up because another optimizer came first, before this one says so."""

Progress = Callable[[str, int, int], None]
"""(table, steps done, steps known so far)"""


class Optimized(msgspec.Struct, frozen=True, kw_only=True):
    """What was done (or, in a dry run, would be) to one table; sizes in bytes."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    merged: int  # files that were put together into fewer
    vacuumed: int
    vacuumed_bytes: int


def bins(entries: Sequence[FileEntry], target_bytes: int) -> list[list[FileEntry]]:
    """Runs of neighbours to be merged: each file under half of the target, together at most the target."""
    found: list[list[FileEntry]] = [[]]
    size = 0
    for entry in entries:
        small = entry.size < target_bytes // 2
        if not small or size + entry.size > target_bytes:
            found.append([])
            size = 0
        if small:
            found[-1].append(entry)
            size += entry.size
    return [run for run in found if len(run) > 1]


def _group_bytes(table: Table, entries: Sequence[FileEntry]) -> dict[str | None, int]:
    """About how many bytes each group's rows take in memory."""
    total: dict[str | None, int] = {}
    schema = pa.schema([table.schema.field("group_id")])
    for entry in entries:
        row = table.memory_bytes(entry) / max(1, entry.rows)
        for each in table.read_entry(entry, schema)["group_id"].value_counts().to_pylist():
            total[each["values"]] = total.get(each["values"], 0) + int(each["counts"] * row)
    return total


def merged(table: Table, entries: Sequence[FileEntry]) -> Iterator[pa.Table]:
    """The rows of these files by group, then in the order of the log; without groups as they stand."""
    if "group_id" not in table.schema.names:
        for entry in entries:
            for part in range(table.row_groups(entry)):
                yield table.read_entry(entry, table.schema, parts=[part])
        return
    sizes = _group_bytes(table, entries)
    for portion in portions(sorted(g for g in sizes if g is not None), sizes.__getitem__, PORTION_BYTES):
        wanted = pa.array(portion, pa.string())
        rows = [table.read_entry(entry, table.schema, portion) for entry in entries]
        chosen = pa.concat_tables([r.filter(pc.is_in(r["group_id"], value_set=wanted)) for r in rows])
        del rows
        yield by_group(chosen, log_order=True)
    for entry in entries if None in sizes else ():
        for part in range(table.row_groups(entry)):
            rest = table.read_entry(entry, table.schema, parts=[part])
            yield rest.filter(pc.is_null(rest["group_id"]))


def compact(
    table: Table, target_bytes: int = TARGET_BYTES, told: Callable[[int, int], None] | None = None
) -> int:
    """Merge until there is nothing to merge; how many files were merged into others.

    told  gets merges done and known.  Raises StoreError where another optimizer keeps coming first.
    """
    files = done = disturbed = 0
    table.refresh()
    while runs := bins(table.entries(), target_bytes):
        for number, run in enumerate(runs):
            if told is not None:
                told(done, done + len(runs) - number)
            if not table.replace(run, merged(table, run)):
                disturbed += 1
                if disturbed == DISTURBED_MAX:
                    raise StoreError(f"{table.uri}: another optimizer is at work; run one at a time")
                break
            files += len(run)
            done += 1
        table.refresh()
    return files


def optimize_table(
    store: Store,
    name: str,
    *,
    target_bytes: int = TARGET_BYTES,
    retain_h: float = RETAIN_H,
    dry_run: bool = False,
    told: Callable[[int, int], None] | None = None,
) -> Optimized:
    """Compaction, vacuum and checkpoint of one table.  Raises StoreError."""  # fmt: skip
    table = store.existing(name)
    if table is None:
        raise StoreError(f"{store.root}/{name} is no table")
    before = table.entries()
    with telling(table.uri, local=table.local):
        if dry_run:
            runs = bins(before, target_bytes)
            files, after = sum(map(len, runs)), None
        else:
            files, after = compact(table, target_bytes, told), table.entries()
        gone = expired(table, retain_h)
        if not dry_run:
            for path in gone:
                delete(table, path)
                failure.reach("optimize.vacuum")
            checkpoint(table)
    return Optimized(
        table=name,
        files_before=len(before),
        files_after=len(before) - files + len(runs) if after is None else len(after),
        bytes_before=sum(e.size for e in before),
        bytes_after=sum(e.size for e in (before if after is None else after)),
        merged=files,
        vacuumed=len(gone),
        vacuumed_bytes=sum(gone.values()),
    )


def table_names(store: Store) -> list[str]:
    """Every table of a lake: events, and the derived sets."""
    names = [f"events/{n}" for n in store.names("events")]
    for set_name in store.folders("sets"):
        names += [f"sets/{set_name}/{n}" for n in store.names(f"sets/{set_name}")]
    return names
