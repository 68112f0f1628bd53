"""The same lake on a real S3 server: rows and offsets in one commit, a second writer refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.rederive import derive_set, fresh_lake
from ingest.tables import EventTables, copy_all
from lake.config import Admission
from lake.digest import table_digest
from lake.log import Log, open_log
from lake.query import QueryError, open_lake
from lake.store import Fenced, Store
from tests.support.run_events import finished_group
from tests.support.s3 import bucket

GROUPS = [f"g-{n:06d}" for n in range(3)]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with bucket(tmp_path_factory.mktemp("s3")):
        yield


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    log = open_log(f"sqlite://{tmp_path_factory.mktemp('log') / 'log.db'}")
    for number in range(3):
        log.append(finished_group(number))
    yield log
    log.close()


@pytest.mark.usefixtures("s3")
def test_a_lake_on_s3_equals_the_local_one(log: Log, tmp_path: Path) -> None:
    remote, local = Store("s3://headrace/equal"), fresh_lake(log, tmp_path / "lake", lambda _sentence: None)
    copy_all(log, remote)
    for store in (remote, local):
        derive_set(store, Admission(), "default", GROUPS, lambda _sentence: None)
    there, here = open_lake("s3://headrace/equal"), open_lake(tmp_path / "lake")
    for name in sorted(set(here.names()) - {"refused"}):
        assert table_digest(there.arrow(name)) == table_digest(here.arrow(name)), name
    assert there.sets() == ["default"]
    assert {name: t.to_pylist() for name, t in there.audit().items() if t.num_rows} == {}
    with pytest.raises(QueryError):
        there.rows("from read_parquet('s3://headrace/again/events/calls/*.parquet')")


@pytest.mark.usefixtures("s3")
def test_it_goes_on_where_it_stood_and_a_second_writer_is_refused(log: Log) -> None:
    store = Store("s3://headrace/again")
    first, zombie = EventTables(log, store), EventTables(log, store)
    reader = log.reader(first.positions())
    records = reader.poll(1.0)
    reader.close()
    assert records
    new = first.commit(records)
    assert sum(t.num_rows for t in new.values()) == len(records)
    with pytest.raises(Fenced):
        zombie.commit(records)
    after = EventTables(log, store)
    assert after.positions() == first.positions()
    assert sum(t.num_rows for t in after.commit(records).values()) == 0
