"""Compaction and vacuum change no row, disturb no writer, and leave nothing behind when killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake import optimize
from lake.digest import table_digest
from lake.optimize import bins, compact, merged, optimize_table, table_names
from lake.query import open_lake
from lake.store import Store, Table
from lake.table import FileEntry, new_name
from lake.vacuum import expired
from tests.support.store_appender import GROUPS, ROWS, SCHEMA, batch, begin, start

ORDER = [("group_id", "ascending"), ("log_offset", "ascending")]
MB = 1 << 20


def filled(root: Path, commits: int = 12, tokens: int = 20) -> Table:
    table = Store(str(root)).table("events/t", SCHEMA)
    for n in range(commits):
        table.append(batch("a", n * ROWS, tokens=tokens), {"a": (n + 1) * ROWS})
    return table


def content(table: Table) -> str:
    table.refresh()
    return table_digest(table.read().sort_by(ORDER))


def entry(size: int, at: int) -> FileEntry:
    return FileEntry(new_name(at), size, 1, None, None)


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([], []),
        ([10], []),
        ([10, 10], [[10, 10]]),
        ([60, 10], []),  # half of the target stays as it is
        ([10, 60, 10], []),  # neighbours only
        ([40, 40, 40, 10, 10], [[40, 40], [40, 10, 10]]),
        ([30] * 7, [[30] * 3, [30] * 3]),
    ],
)
def test_small_neighbours_are_merged(sizes: list[int], runs: list[list[int]]) -> None:
    found = bins([entry(size, at) for at, size in enumerate(sizes)], 100)
    assert [[e.size for e in run] for run in found] == runs


def test_merged_rows_are_the_same_by_group_in_the_order_of_the_log(tmp_path: Path) -> None:
    table = filled(tmp_path, tokens=600)
    wanted = content(table)
    done = optimize_table(Store(str(tmp_path)), "events/t")
    assert (done.files_before, done.files_after, done.merged) == (12, 1, 12)
    assert done.bytes_after < done.bytes_before
    assert content(table) == wanted
    rows = table.read()
    assert rows.equals(rows.sort_by(ORDER))
    assert table.offset("a") == 12 * ROWS
    metadata = pq.read_metadata(table.files()[0])
    groups = [metadata.row_group(i).column(0).statistics for i in range(metadata.num_row_groups)]
    assert [s.min for s in groups] == [s.max for s in groups] == [f"g-{n:03d}" for n in range(GROUPS)]


def test_a_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    table, store = filled(tmp_path), Store(str(tmp_path))
    target = 3 * table.entries()[0].size
    first = optimize_table(store, "events/t", target_bytes=target, retain_h=0)
    assert first.vacuumed >= 12
    table.refresh()
    version, files = table.version, table.files()
    again = optimize_table(store, "events/t", target_bytes=target, retain_h=0)
    table.refresh()
    assert (table.version, table.files()) == (version, files)
    assert (again.merged, again.vacuumed, again.bytes_before) == (0, 0, first.bytes_after)
    assert sorted(p.name for p in (tmp_path / "events" / "t").glob("*.parquet")) == [
        e.name for e in table.entries()
    ]


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    table = filled(tmp_path)
    done = optimize_table(Store(str(tmp_path)), "events/t", dry_run=True)
    assert (done.files_before, done.files_after, done.merged) == (12, 1, 12)
    version = table.version
    table.refresh()
    assert (table.version, len(table.files())) == (version, 12)


def test_tables_without_groups_and_rows_without_a_group(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("group_id", pa.string())])
    store = Store(str(tmp_path))
    flat, some = store.table("events/flat", schema.remove(1)), store.table("events/some", schema)
    for n in range(5):
        flat.append(pa.table({"n": [2 * n, 2 * n + 1]}, schema.remove(1)))
        some.append(pa.table({"n": [n, n + 100], "group_id": [None, "b" if n % 2 else "a"]}, schema))
    assert [optimize_table(store, name).files_after for name in table_names(store)] == [1, 1]
    flat.refresh()
    some.refresh()
    assert flat.read()["n"].to_pylist() == list(range(10))
    assert some.read()["n"].to_pylist() == [100, 102, 104, 101, 103, 0, 1, 2, 3, 4]


def test_it_runs_while_a_worker_appends(tmp_path: Path) -> None:
    root, commits = str(tmp_path), 40
    worker = start(root, "a", commits, 0.01)
    begin(worker)
    table = Store(root).table("events/t", SCHEMA)
    merges = 0
    while worker.poll() is None:
        merges += compact(table, 64 << 10)
    assert worker.communicate()[0] == ""
    merges += compact(table, 64 << 10)
    assert merges > commits
    assert len(table.files()) < commits / 2
    assert table.offset("a") == commits * ROWS
    assert content(table) == table_digest(batch("a", 0, commits * ROWS).sort_by(ORDER))


def test_of_two_optimizers_one_is_refused(tmp_path: Path) -> None:
    table = filled(tmp_path)
    wanted = content(table)
    other = Store(str(tmp_path)).table("events/t", SCHEMA)
    mine, theirs = table.entries()[:6], other.entries()[3:9]
    assert other.replace(theirs, merged(other, theirs))
    assert not table.replace(mine, merged(table, mine))
    assert content(table) == wanted
    assert len(list((tmp_path / "events" / "t").glob("*.parquet"))) == 13  # nothing left of the refused
    compact(table)
    assert content(table) == wanted
    assert len(table.files()) == 1


OPTIMIZE = (
    "import sys; from lake.optimize import *; optimize_table(Store(sys.argv[1]), 'events/t', retain_h=0)"
)
POINTS = (
    "store.before-write",
    "store.after-write",
    "store.before-commit",
    "store.after-commit",
    "optimize.vacuum",
)


def test_killed_at_any_point_it_loses_nothing(tmp_path: Path) -> None:
    table = filled(tmp_path)
    wanted = content(table)
    for point in POINTS:
        killed = subprocess.run(
            [sys.executable, "-c", OPTIMIZE, str(tmp_path)],
            env=dict(os.environ) | {"HEADRACE_KILL_AT": point}, cwd=Path(__file__).parents[2], check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, point
        assert content(table) == wanted, point
        table.append(batch("a", table.offset("a") or 0), {"a": (table.offset("a") or 0) + ROWS})
        wanted = content(table)
    optimize_table(Store(str(tmp_path)), "events/t", retain_h=0)
    assert content(table) == wanted
    assert len(table.files()) == 1


def test_only_what_is_older_than_the_retention_is_deleted(tmp_path: Path) -> None:
    table = filled(tmp_path)
    leftover = tmp_path / "events" / "t" / new_name(time.time_ns())  # of a writer that crashed, or is at work
    leftover.write_bytes(b"begun")
    replaced = {e.name for e in table.entries()}
    compact(table)
    assert expired(table, 1.0) == {}
    assert expired(table, 0.0).keys() == replaced
    old = time.time() - 30 * 3600
    os.utime(leftover, (old, old))
    assert expired(table, 48.0) == {}
    assert expired(table, 25.0) == {leftover.name: 5}
    assert expired(table, 0.0).keys() == replaced | {leftover.name}


def test_a_reader_of_vacuumed_files_sees_the_newest_version(tmp_path: Path) -> None:
    reader = filled(tmp_path)
    wanted = content(reader)
    optimize_table(Store(str(tmp_path)), "events/t", retain_h=0)
    assert table_digest(reader.read().sort_by(ORDER)) == wanted


def test_a_merge_holds_a_portion_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path, commits=8, tokens=10_000)  # 13 MB of token ids, 8 groups
    monkeypatch.setattr(optimize, "PORTION_BYTES", 2 * MB)
    parts = [rows.nbytes for rows in merged(table, table.entries())]
    assert sum(parts) > 12 * MB
    assert max(parts) < 3 * MB


def test_every_model_of_an_optimized_lake_is_as_before(tmp_path: Path) -> None:
    archive = Path(__file__).parents[1] / "golden" / "recorded" / "v1.tar.xz"
    with tarfile.open(archive) as recorded:
        recorded.extractall(tmp_path, filter="data")
    root = str(tmp_path / "lake")
    before = open_lake(root)
    models = sorted(before.models.by_name)
    wanted = {name: table_digest(before.arrow(name)) for name in models}
    command = [sys.executable, "-m", "headrace", "lake", "optimize", root, "--json", "--retain-hours", "0"]
    done = subprocess.run(command, capture_output=True, check=True, cwd=Path(__file__).parents[2])
    assert b'"merged":4' in done.stdout
    after = open_lake(root)
    assert {name: table_digest(after.arrow(name)) for name in models} == wanted
    assert {name: t.num_rows for name, t in after.audit().items() if t.num_rows} == {}
