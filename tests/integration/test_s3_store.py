"""A table on a real S3 server that goes away, also between a commit and its answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lake.optimize import optimize_table
from lake.store import Fenced, Store, StoreUnavailable, Table
from tests.support.forwarder import Forwarder, forwarding
from tests.support.s3 import bucket
from tests.support.store_appender import ROWS, SCHEMA, batch


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forwarder]:
    with (
        bucket(tmp_path_factory.mktemp("s3")) as server,
        forwarding(int(server.address.rsplit(":", 1)[1])) as forwarder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{forwarder.port}")
        yield forwarder


def append(table: Table, number: int) -> int:
    stood = number * ROWS or None
    return table.append(batch("a", number * ROWS), {"a": (number + 1) * ROWS}, {"a": stood})


def whole(name: str, commits: int) -> None:
    table = Store("s3://headrace/lake").table(name, SCHEMA)
    assert table.offset("a") == commits * ROWS
    assert sorted(table.read(columns=["log_offset"])["log_offset"].to_pylist()) == list(range(commits * ROWS))


def test_a_store_that_is_away_is_told_and_the_same_append_goes_on(way: Forwarder) -> None:
    table = Store("s3://headrace/lake").table("t0", SCHEMA)
    append(table, 0)
    way.cut = True
    with pytest.raises(StoreUnavailable, match="t0: the object store does not answer"):
        append(table, 1)
    with pytest.raises(StoreUnavailable):
        table.read()
    with pytest.raises(StoreUnavailable):
        Store("s3://headrace/lake").existing("t0")
    way.cut = False
    append(table, 1)
    whole("t0", 2)


def test_a_commit_whose_answer_was_lost_is_not_repeated(way: Forwarder) -> None:
    table = Store("s3://headrace/lake").table("t1", SCHEMA)
    append(table, 0)
    way.lose = f"PUT /headrace/lake/t1/_delta_log/{table.version + 1:020d}.json".encode()
    with pytest.raises(StoreUnavailable, match="the answer to a commit was lost"):
        append(table, 1)
    assert way.lost == 1
    way.cut = False
    version = append(table, 1)
    assert version == table.version == 2
    append(table, 2)
    whole("t1", 3)
    assert len(table.files()) == 3


def test_a_commit_that_was_lost_and_then_overtaken_is_fenced(way: Forwarder) -> None:
    table, other = (Store("s3://headrace/lake").table("t2", SCHEMA) for _ in range(2))
    append(table, 0)
    append(other, 1)
    with pytest.raises(Fenced, match="a stands at 80, this writer left it at 40"):
        append(table, 1)
    whole("t2", 2)


def test_rows_of_a_group_are_read_alone(way: Forwarder) -> None:
    table = Store("s3://headrace/lake").table("t3", SCHEMA)
    table.append(batch("a", 0, rows=64, tokens=400), {"a": 64})
    found = table.read(["g-003"])
    assert found["log_offset"].to_pylist() == list(range(3, 64, 8))
    assert table.reads.rows == 8
    assert not way.cut


def test_it_is_optimized_on_the_object_store(way: Forwarder) -> None:
    store = Store("s3://headrace/lake")
    table = store.table("t4", SCHEMA)
    for n in range(4):
        append(table, n)
    done = optimize_table(store, "t4", retain_h=0)
    assert (done.files_after, done.merged, done.vacuumed) == (1, 4, 4)
    again = optimize_table(store, "t4", retain_h=0)
    assert (again.merged, again.vacuumed, again.bytes_before) == (0, 0, done.bytes_after)
    append(table, 4)  # its handle is from before
    whole("t4", 5)
    assert len(table.files()) == 2
    assert not way.cut
