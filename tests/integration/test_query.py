"""A lake is read-only and closed; every table and model can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.derived import DerivedSet, SetDiffers
from ingest.materialise import params_of
from ingest.rederive import derive_set, fresh_lake
from ingest.sets import set_name_of
from lake.config import Admission
from lake.layout import NotARun
from lake.log import open_log
from lake.query import Lake, QueryError, open_lake
from lake.store import Store
from tests.support.run_events import finished_group


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    log = open_log(f"sqlite://{folder / 'log.db'}")
    for number in range(3):
        log.append(finished_group(number))
    store = fresh_lake(log, folder / "lake", lambda _sentence: None)
    groups = [f"g-{n:06d}" for n in range(3)]
    derive_set(store, Admission(), "default", groups, lambda _sentence: None)
    derive_set(store, Admission(j_max=1), "j_max=1", groups, lambda _sentence: None)
    log.close()
    return folder / "lake"


@pytest.fixture
def lake(root: Path) -> Lake:
    return open_lake(root)


def test_every_name_can_be_asked_for(lake: Lake) -> None:
    for name in lake.names():
        assert lake.arrow(name).num_columns > 0, name


def test_one_query_after_another(lake: Lake) -> None:
    assert lake.rows("select count(*) as n from weights") == [{"n": 12}]
    assert lake.rows("select count(*) as n from executions join calls using (execution_id)") == [{"n": 36}]
    assert lake.rows("explain from calls")


def test_sums_of_integers_are_integers(lake: Lake) -> None:
    (row,) = lake.rows("select sum(n_output) as n from calls")
    assert row == {"n": 144}
    assert type(row["n"]) is int


def test_arrow_polars_and_rows_agree(lake: Lake) -> None:
    query = "select count(*) as n from event_calls"
    assert lake.rows(query) == [{"n": 36}]
    assert lake.arrow("event_calls").num_rows == lake.polars("event_calls").height == 36


@pytest.mark.parametrize(
    "query",
    [
        "drop view weights",
        "create table t as select 1",
        "insert into params select * from params",
        "copy (select 1) to '/tmp/x.csv'",
        "attach ':memory:' as other",
        "install httpfs",
        "load httpfs",
        "set threads = 7",
        "pragma enable_profiling",
        "select 1; select 2",
        "",
        "selec 1",
    ],
)
def test_what_is_not_one_read_is_refused(lake: Lake, query: str) -> None:
    with pytest.raises(QueryError):
        lake.sql(query)


@pytest.mark.parametrize(
    "query",
    [
        "from read_csv('/etc/passwd')",
        "from read_text('/etc/hostname')",
        "from '/etc/hostname'",
        "from read_parquet('/tmp/*.parquet')",
        "from read_parquet('https://127.0.0.1:1/x.parquet')",
        "from glob('/etc/*')",
    ],
)
def test_nothing_outside_the_lake_is_read(lake: Lake, query: str) -> None:
    with pytest.raises(QueryError):
        lake.rows(query)


def test_a_name_that_is_not_there_is_named(lake: Lake) -> None:
    with pytest.raises(QueryError, match="no table or model 'nothing'"):
        lake.arrow("nothing")
    with pytest.raises(QueryError, match="nothing"):
        lake.rows("from nothing")


def test_sets_lie_side_by_side(root: Path) -> None:
    first, second = open_lake(root), open_lake(root, "j_max=1")
    assert first.sets() == ["default", "j_max=1"]
    assert (first.params.j_max, second.params.j_max) == (5, 1)
    assert first.arrow("admitted").num_rows == second.arrow("admitted").num_rows == 12


def test_a_set_keeps_its_parameters(root: Path) -> None:
    with pytest.raises(SetDiffers, match="give the set another name"):
        DerivedSet(Store(str(root)), params_of(Admission(j_max=2), "j_max=1"))


def test_a_set_is_named_by_what_differs() -> None:
    run = Admission()
    assert set_name_of(run, run) == "default"
    assert set_name_of(Admission(j_max=1, seed=3), run) == "j_max=1,seed=3"


def test_a_folder_that_is_neither_run_nor_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="neither a run nor a lake"):
        open_lake(tmp_path)


def test_the_audits_hold(lake: Lake) -> None:
    found = lake.audit()
    assert found
    assert {name: t.num_rows for name, t in found.items() if t.num_rows} == {}
