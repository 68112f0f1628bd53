"""What must not be possible through SQL, tried on a lake of files and on one of an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from lake.query import Lake, QueryError, open_lake
from lake.sql_text import quoted
from tests.support import small_lake
from tests.support.command import document
from tests.support.s3 import bucket

WRITES = (
    "copy (select 1 as a) to {file}",
    "explain analyze copy (select 1 as a) to {file}",
    "explain (analyze, format json) copy (select 1 as a) to {file}",
    "with x as (copy (select 1 as a) to {file}) from x",
    "explain analyze with x as (copy (select 1 as a) to {file}) from x",
    "select (with x as (copy (select 1 as a) to {file}) from x)",
    "with x as (insert into params select * from params returning *) from x",
    "with x as (delete from params returning *) from x",
    "with x as (update params set j_max = 1 returning *) from x",
    "insert into params select * from params",
    "delete from params",
    "update params set j_max = 7",
    "truncate params",
    "create table t as select 1",
    "explain analyze create table t as select 1",
    "create view v as select 1",
    "create or replace temp view weights as select 1",
    "create macro f(x) as x",
    "create secret (type s3)",
    "create schema s",
    "drop view weights",
    "alter table params rename to other",
    "comment on table params is 'x'",
    "export database {file}",
    "import database {file}",
    "attach {file} as other",
    "attach ':memory:' as other",
    "detach temp",
    "use temp",
    "vacuum",
    "checkpoint",
    "from checkpoint()",
    "begin",
    "prepare p as select 1",
    "execute p",
    "call checkpoint()",
    "set threads = 7",
    "set variable x = 1",
    "set memory_limit = '100GB'",
    "set enable_external_access = true",
    "set lock_configuration = false",
    "reset lock_configuration",
    "pragma enable_profiling",
    "pragma database_list",
    "from enable_logging(storage = 'file', storage_path = {file})",
    "from enable_profiling(save_location = {file})",
    "from truncate_duckdb_logs()",
    "install httpfs",
    "load httpfs",
    "load {file}",
    "force install httpfs",
    "from add_grammar_extension('x')",
    "pivot calls on role",  # without values it is several statements, one of which makes a type
)
READS = (
    "from {file}",
    "from {secret}",
    "from read_text({secret})",
    "from read_blob({secret})",
    "from read_csv({secret})",
    "from read_json({secret})",
    "from read_parquet({secret})",
    "from parquet_scan({secret})",
    "from parquet_metadata({secret})",
    "from sniff_csv({secret})",
    "from read_duckdb({secret})",
    "from glob({secret})",
    "from glob('/*')",
    "from glob({inside})",
    "from read_parquet({inside})",
    "from read_text({params})",
    'from "read_text"({secret})',
    "from system.main.read_text({secret})",
    "select (select content from read_text({secret}))",
    "with x as (from read_text({secret})) from x",
    "explain from read_text({secret})",
    "describe from read_text({secret})",
    "summarize from read_csv({secret})",
    "from query('from read_text(' || {secret} || ')')",
    "from query_table({secret})",
    "from json_execute_serialized_sql(json_serialize_sql('from glob(''/*'')'))",
    "from read_parquet('https://127.0.0.1:1/x.parquet')",
    "from 'https://127.0.0.1:1/x.parquet'",
    "from read_text('s3://other/secret')",
    "from 's3://other/x.parquet'",
    "from read_parquet('http://169.254.169.254/latest/meta-data')",
    "from duckdb_secrets()",
    "from which_secret('s3://other/x', 's3')",
    "select getenv('HOME')",
    "from our_table",  # variables of Python, ours or of whoever calls
    "from query",
    "from self",
    "from python_arrow_scan(1, 2, 3)",
    "from pandas_scan(1)",
    "from st_read({secret})",
)
SEVERAL = (
    "select 1; select 2",
    "select 1; drop view weights",
    "",
    ";",
    "-- nothing",
    "selec 1",
    "select ';'; x",
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return open_lake(small_lake.make(tmp_path_factory.mktemp("lake")))


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with bucket(tmp_path_factory.mktemp("s3")):
        lake = open_lake(small_lake.make(tmp_path_factory.mktemp("log"), "s3://headrace/refused"))
        yield lake
        lake.close()


def _attempts(lake: Lake, folder: Path) -> list[str]:
    """Every attempt, on files beside the lake, in it, and outside."""
    secret = folder / "secret.txt"
    secret.write_text("a secret")
    places = {
        "secret": quoted(str(secret)),
        "file": quoted(str(folder / "written")),
        "inside": quoted(f"{lake.root}/events/calls/*.parquet"),
        "params": quoted(f"{lake.root}/sets/default/params.json"),
    }
    into = places | {"file": quoted(f"{lake.root}/events/written.parquet")}
    up = places | {"secret": quoted(f"{lake.root}/../secret.txt")}
    found = [text.format(**p) for text in (*WRITES, *READS) for p in (places, into, up)]
    return [*dict.fromkeys(found), *SEVERAL]


def _check(lake: Lake, folder: Path) -> None:
    assert lake.rows("from calls")  # a computed model: `params` is there
    before = lake.rows("from weights order by all")
    our_table = pa.table({"a": [1]})
    for attempt in _attempts(lake, folder):
        for way in (lambda q: lake.sql(q).fetchall(), lake.rows, lambda q: list(lake.stream(q)[1])):
            try:
                got = way(attempt)
            except QueryError:
                continue
            pytest.fail(f"{attempt}: {got}")
    assert our_table.num_rows == 1
    assert sorted(p.name for p in folder.iterdir()) == ["secret.txt"]
    assert lake.rows("select count(*) as n from params") == [{"n": 1}]
    assert lake.rows("from weights order by all") == before


def test_a_lake_of_files_is_closed(local: Lake, tmp_path: Path) -> None:
    files = sorted(Path(local.root).rglob("*"))
    _check(local, tmp_path)
    assert sorted(Path(local.root).rglob("*")) == files


def test_a_lake_of_an_object_store_is_closed(remote: Lake, tmp_path: Path) -> None:
    _check(remote, tmp_path)
    assert "written" not in str(remote._store.names("events"))
    (row,) = document("sql", remote.root, "select count(*) as n from weights", folder=tmp_path)
    assert row == {"n": 12}  # the command too, within its bound of memory


@pytest.mark.parametrize(
    "query",
    [
        "explain from weights",
        "explain analyze from calls",
        "explain (format json) from calls",
        "EXPLAIN /* why */ ANALYZE select 1;",
        "describe weights",
        "describe select * from calls",
        "summarize scores",
        "show tables",
        "show weights",
        "from Weights",
        "with x as (from calls) from x join weights using (execution_id)",
        "with recursive r as (select 1 as i union all select i + 1 from r where i < 3) from r",
        "pivot calls on role in ('main', 'sub-agent') using count(*)",
        "values (1), (2)",
        "select ';' -- one;",
        "from range(3), unnest([1, 2]) t(x)",
        "(from calls) union all by name (from tools) order by all limit 3",
        "select 'copy (select 1) to x', $$ insert into params $$",
    ],
)
def test_what_reads_is_allowed(local: Lake, query: str) -> None:
    assert local.rows(query)
    assert sum(batch.num_rows for batch in local.stream(query)[1]) > 0


def test_every_model_is_one_read(local: Lake) -> None:
    for model in local.models.describe():
        assert local.check(model.select).names >= model.inputs


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("from wieghts", "no table or model 'wieghts'; close: weights.* \\(line 1, column 6: wieghts\\)"),
        (
            "select 1,\n  n_outputs\nfrom calls",
            '.*"n_output".* \\(line 2, column 3: n_outputs\\)',
        ),
        ("select " + "1, " * 100 + "nothing from calls", "\\(line 1, column 308: nothing\\)"),
        ("selec 1", "syntax error at or near .*\\(line 1, column 1: selec\\)"),
        ("select 1 +\nfrom", "syntax error"),
        ("explain from nothing_like_it", "no table or model 'nothing_like_it'"),
        ("select lenght('a')", 'Did you mean "length"\\? \\(line 1, column 8'),
        ("select 1 from calls where role = 1 / 0.0 and x", 'column "x" not found'),
        ("select cast('a' as int)", "Could not convert string 'a' to INT32"),
    ],
)
def test_an_error_is_one_sentence_with_its_place(local: Lake, query: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence) as found:
        local.rows(query)
    assert "\n" not in str(found.value)
    assert isinstance(found.value.__cause__, duckdb.Error)
