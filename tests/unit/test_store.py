"""Delta tables: rows and offsets in one commit, fencing, pruning by group."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lake.store import Fenced, Store, Table

SCHEMA = pa.schema([("group_id", pa.string()), ("n", pa.int64()), ("ids", pa.list_(pa.int32()))])


def rows(*groups: str) -> pa.Table:
    return pa.table(
        {"group_id": list(groups), "n": list(range(len(groups))), "ids": [[1, 2]] * len(groups)}, SCHEMA
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Store(str(tmp_path / "lake")).table("events/t", SCHEMA)


def test_rows_and_offsets_are_one_commit(table: Table, tmp_path: Path) -> None:
    table.append(rows("a", "b"), {"log/t/0": 2}, {"log/t/0": None})
    table.append(rows("c"), {"log/t/0": 3}, {"log/t/0": 2})
    again = Store(str(tmp_path / "lake")).table("events/t", SCHEMA)
    assert again.offset("log/t/0") == 3
    assert again.read().to_pylist() == [*rows("a", "b").to_pylist(), *rows("c").to_pylist()]


def test_offsets_alone_can_be_committed(table: Table) -> None:
    table.append(SCHEMA.empty_table(), {"log/t/0": 7})
    assert table.offset("log/t/0") == 7
    assert table.read().num_rows == 0
    assert table.files() == []


def test_nothing_to_commit_is_no_commit(table: Table) -> None:
    version = table.version
    assert table.append(SCHEMA.empty_table()) == version


def test_another_writer_of_the_same_offsets_is_fenced(table: Table, tmp_path: Path) -> None:
    zombie = Store(str(tmp_path / "lake")).table("events/t", SCHEMA)
    table.append(rows("a"), {"log/t/0": 1}, {"log/t/0": None})
    with pytest.raises(Fenced, match="stands at 1, this writer left it at None"):
        zombie.append(rows("a"), {"log/t/0": 1}, {"log/t/0": None})
    table.refresh()
    assert table.read().num_rows == 1


def test_writers_of_other_offsets_do_not_disturb(table: Table, tmp_path: Path) -> None:
    other = Store(str(tmp_path / "lake")).table("events/t", SCHEMA)
    table.append(rows("a"), {"log/t/0": 1}, {"log/t/0": None})
    other.append(rows("b"), {"log/t/1": 1}, {"log/t/1": None})
    table.refresh()
    assert sorted(table.read()["group_id"].to_pylist()) == ["a", "b"]


def test_only_files_that_may_hold_a_group_are_read(table: Table) -> None:
    for group in ("a", "b", "c"):
        table.append(rows(group, group))
    assert len(table.files()) == 3
    assert len(table.files(["b"])) == 1
    assert table.read(["b"], ["n"]).to_pylist() == [{"n": 0}, {"n": 1}]
    assert table.read(["none"]).num_rows == 0


def test_names_and_existing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "lake"))
    assert store.names("events") == []
    assert store.existing("events/t") is None
    store.table("events/t", SCHEMA).append(rows("a"))
    assert store.names("events") == ["t"]
    found = store.existing("events/t")
    assert found is not None
    assert found.read().to_pylist() == rows("a").to_pylist()


def test_small_files_lie_beside_the_tables(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "lake"))
    assert store.read_file("sets/x/params.json") is None
    store.write_file("sets/x/params.json", b"{}")
    assert store.read_file("sets/x/params.json") == b"{}"
