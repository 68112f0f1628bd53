"""Several processes on one table: nothing lost, nothing twice, a second writer of an offset refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lake.digest import table_digest
from lake.store import Fenced, SchemaDiffers, Store
from tests.support.store_appender import ROWS, SCHEMA, batch, begin, start

COMMITS = 12
ORDER = [("app", "ascending"), ("log_offset", "ascending")]


def expected(apps: list[str], rows: int) -> pa.Table:
    return pa.concat_tables([batch(app, 0, rows) for app in apps]).sort_by(ORDER)


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    return [process.communicate(timeout=60)[0] for process in processes]


def test_four_processes_append_and_nothing_is_lost(tmp_path: Path) -> None:
    apps = [f"log/t/{p}" for p in range(4)]
    processes = [start(str(tmp_path), app, COMMITS) for app in apps]
    old = Store(str(tmp_path)).table("events/t", SCHEMA)  # sees none of what comes
    for process in processes:
        begin(process)
    assert finish(processes) == [""] * 4
    with pytest.raises(Fenced, match=f"stands at {COMMITS * ROWS}, this writer left it at None"):
        old.append(batch(apps[0], 0), {apps[0]: ROWS}, {apps[0]: None})
    table = Store(str(tmp_path)).table("events/t", SCHEMA)
    assert [table.offset(app) for app in apps] == [COMMITS * ROWS] * 4
    assert table_digest(table.read().sort_by(ORDER)) == table_digest(expected(apps, COMMITS * ROWS))


def test_two_processes_of_one_offset_one_is_refused(tmp_path: Path) -> None:
    processes = [start(str(tmp_path), "log/t/0", COMMITS) for _ in range(2)]
    for process in processes:
        begin(process)
    said = finish(processes)
    assert sum("fenced" in words for words in said) >= 1
    table = Store(str(tmp_path)).table("events/t", SCHEMA)
    end = table.offset("log/t/0")
    assert end is not None
    assert table_digest(table.read().sort_by(ORDER)) == table_digest(expected(["log/t/0"], end))
    assert len(list((tmp_path / "events" / "t").glob("*.parquet"))) == len(table.files())  # none left over


def test_what_others_committed_meanwhile_is_seen_before_the_check(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first, second = (store.table("events/t", SCHEMA) for _ in range(2))
    for n in range(5):
        first.append(batch("a", n * ROWS), {"a": (n + 1) * ROWS})
        first.append(batch("b", n * ROWS), {"b": (n + 1) * ROWS})
    second.append(batch("a", 5 * ROWS), {"a": 6 * ROWS}, {"a": 5 * ROWS})  # its handle is ten versions old
    assert second.offset("b") == 5 * ROWS
    with pytest.raises(Fenced, match="a stands at 240, this writer left it at 200"):
        first.append(batch("a", 5 * ROWS), {"a": 6 * ROWS}, {"a": 5 * ROWS})


WIDER = SCHEMA.append(pa.field("schema", pa.int32())).append(pa.field("note", pa.list_(pa.string())))


def test_processes_that_add_the_same_columns_at_once_both_succeed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for n in range(4):
        writer = store.table(f"events/t{n}", SCHEMA)
        writer.append(batch("a", 0), {"a": ROWS})
        together, found = threading.Barrier(3), []

        def evolve(name: str = f"events/t{n}", together=together, found=found) -> None:
            together.wait()
            found.append(store.table(name, WIDER))

        threads = [threading.Thread(target=evolve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 3
        writer.append(batch("a", ROWS), {"a": 2 * ROWS}, {"a": ROWS})  # an older program goes on
        rows = batch("b", 0).append_column(WIDER.field("schema"), pa.array([2] * ROWS, pa.int32()))
        rows = rows.append_column(WIDER.field("note"), pa.array([["x"]] * ROWS, WIDER.field("note").type))
        found[0].append(rows, {"b": ROWS}, {"b": None})
        read = store.table(f"events/t{n}", WIDER).read()
        assert read.schema == WIDER
        assert sorted(read["schema"].to_pylist(), key=str) == [2] * ROWS + [None] * 2 * ROWS
        writer.refresh()
        assert writer.read().schema == SCHEMA  # and reads what it declared
        assert writer.read().num_rows == 3 * ROWS


def test_tables_created_by_several_at_once_are_one(tmp_path: Path) -> None:
    together, found = threading.Barrier(4), []

    def create() -> None:
        together.wait()
        found.append(Store(str(tmp_path)).table("events/t", SCHEMA))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, table in enumerate(found):
        table.append(batch(str(n), 0), {str(n): ROWS}, {str(n): None})
    assert len(found) == 4
    assert Store(str(tmp_path)).table("events/t", SCHEMA).read().num_rows == 4 * ROWS


def test_a_changed_type_is_refused_by_name(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.table("events/t", SCHEMA)
    changed = SCHEMA.set(3, pa.field("log_offset", pa.string()))
    with pytest.raises(SchemaDiffers, match=r"log_offset is .*long.*, declared .*string"):
        store.table("events/t", changed)


def test_a_disk_that_fills_tears_nothing(tmp_path: Path) -> None:
    """On a tmpfs of 1 MiB in a mount namespace of its own: see tests/support/small_disk.py."""
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no mount namespace of one's own here (unshare -rm)")
    script = (
        f"mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec {sys.executable} -m tests.support.small_disk"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{script} {tmp_path}"],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("whole")
