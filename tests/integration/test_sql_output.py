"""What `headrace sql` writes: a table of the first rows, and CSV, JSON and Parquet of all of them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from lake.output import Answers
from lake.query import Lake, open_lake
from lake.stopping import Runner
from tests.support import small_lake
from tests.support.command import HEADRACE, document, headrace

ODD = """select 1 as i, 3::hugeint as big, 1.50::decimal(5, 2) as d, 'a "b", c' as s, 'ab'::blob as b,
    [1.5, 'nan'::double, 'inf'::double, null] as l, 'nan'::float as f, null as n, true as t, '' as e,
    {'x': 'y'::blob, 'z': ['-inf'::float]} as st, map {'k': 'nan'::double} as m, interval 3 day as iv,
    timestamp '2026-01-01 00:00:01.5' as ts, timestamptz '2026-01-01 00:00:01+00' as tz, '101'::bit as bt,
    '{"a": 1}'::json as j, [[1], []] as ll, null::double[] as nl, 2 as i, 'x'::enum('x') as en"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_lake.make(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def lake(root: str) -> Lake:
    return open_lake(root)


def written(lake: Lake, query: str, form: str) -> bytes:
    sink, runner = io.BytesIO(), Runner(lake)
    Answers(lake, runner, form).answer(query, sink)
    runner.close()
    return sink.getvalue()


def strict(text: bytes) -> list[dict[str, object]]:
    """JSON as its standard has it: no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found: list[dict[str, object]] = json.loads(text, parse_constant=refuse)
    return found


def test_json_has_a_form_for_every_value(lake: Lake) -> None:
    (row,) = strict(written(lake, ODD, "json"))
    assert row == {
        "i": 1, "big": 3, "d": 1.5, "s": 'a "b", c', "b": "YWI=", "l": [1.5, None, None, None], "f": None,
        "n": None, "t": True, "e": "", "st": {"x": "eQ==", "z": [None]}, "m": {"k": None}, "iv": "3 days",
        "ts": "2026-01-01T00:00:01.5", "tz": "2026-01-01T00:00:01.000000+00", "bt": "101",
        "j": '{"a": 1}', "ll": [[1], []], "nl": None, "i_1": 2, "en": "x",
    }  # fmt: skip


def test_csv_has_a_form_for_every_value(lake: Lake) -> None:
    header, values = csv.reader(io.StringIO(written(lake, ODD, "csv").decode()))
    assert header.count("i") == 2
    row = dict(zip(header, values, strict=True))
    assert (row["s"], row["b"], row["n"], row["d"]) == ('a "b", c', "YWI=", "", "1.50")
    assert json.loads(row["l"]) == [1.5, None, None, None]
    assert json.loads(row["st"]) == {"x": "eQ==", "z": [None]}
    assert written(lake, "select null as a, '' as b", "csv") == b'"a","b"\n,""\n'  # null is not empty


def test_parquet_keeps_types_and_nulls(lake: Lake) -> None:
    table = parquet.read_table(io.BytesIO(written(lake, ODD, "parquet")))
    assert table.schema.field("l").type == pa.list_(pa.field("element", pa.float64()))
    assert table.schema.field("b").type == pa.binary()
    assert table.column_names[-2] == "i_1"
    assert table.column("nl").null_count == 1
    whole = parquet.read_table(io.BytesIO(written(lake, "from event_calls order by event_id", "parquet")))
    assert whole.to_pylist() == lake.arrow("event_calls").sort_by("event_id").to_pylist()


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "table"])
@pytest.mark.parametrize(
    "query", ["from weights where false", "explain from weights", "show tables", "describe calls"]
)
def test_every_format_has_every_kind_of_answer(
    lake: Lake, form: str, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got = written(lake, query, form)
    assert got or capsys.readouterr().out
    if form == "json":
        assert bool(strict(got)) == ("false" not in query)


def test_a_table_shows_its_first_rows_and_says_that_there_are_more(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = Runner(lake)
    answers = Answers(lake, runner, limit=3)
    done = answers.answer("select i, range(i, i + 20) as l from range(10000000000) t(i)", io.BytesIO())
    shown, said = capsys.readouterr()
    assert (done.rows, done.more) == (3, True)
    assert "[2, 3, 4, 5, 6, 7, 8, 9, ...] 20 items" in shown
    assert "there are more than these 3" in said
    done = answers.answer("select i from range(3) t(i)", io.BytesIO())
    assert (done.rows, done.more) == (3, False)
    assert capsys.readouterr().err == ""
    runner.close()


def test_the_order_of_a_query_is_kept_in_every_format(lake: Lake) -> None:
    query = "select i from range(20000) t(i) order by hash(i)"
    wanted = [i for (i,) in lake.sql(query).fetchall()]
    assert [row["i"] for row in strict(written(lake, query, "json"))] == wanted
    assert [int(line) for line in written(lake, query, "csv").split()[1:]] == wanted


def test_the_command_writes_a_file_whole_or_not_at_all(root: str, tmp_path: Path) -> None:
    query = ("sql", root, "from event_calls", "--format", "parquet", "--output", "calls.parquet")
    headrace(*query, folder=tmp_path)
    assert parquet.read_table(tmp_path / "calls.parquet").num_rows == 36
    failing = "select case when i < 500000 then 1 else error('no') end as a from range(1000000) t(i)"
    headrace("sql", root, failing, "--format", "csv", "--output", "a.csv", folder=tmp_path, status=2)
    assert [p.name for p in tmp_path.iterdir()] == ["calls.parquet"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["select 1", "--output", "x"], "--output x needs --format csv, json or parquet"),
        (["select 1", "--json", "--format", "csv"], "--json is --format json"),
        (
            ["select 1", "--format", "csv", "--output", "{root}/events/x.csv"],
            "lies in the lake, which is read-only",
        ),
        (["select 1", "--format", "xml"], "'xml' is not one of"),
        (["select 1", "--limit", "0"], "0 is not in the range"),
        (["select 1; select 2"], "one SELECT is allowed"),
    ],
)
def test_what_goes_not_together_is_said(root: str, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = headrace("sql", root, *(a.format(root=root) for a in arguments), folder=tmp_path, status=2)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def piped(root: str, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADRACE, "sql", root, *options],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_statements_from_a_pipe_run_to_the_first_that_fails(root: str) -> None:
    text = "-- three\nselect 1 as a;\n.format csv\nselect ';' as b;\nselect c\nfrom calls; select 4 as d"
    done = piped(root, text)
    assert done.returncode == 2
    assert '"b"\n";"\n' in done.stdout
    assert '"d"' not in done.stdout
    assert done.stderr.startswith("QueryError: statement 4 of 5, select c from calls: ")
    assert "(line 1, column 8: c)" in done.stderr
    done = piped(root, "select 1 as a; select 2 as a;", "--format", "json", "--timing")
    assert (done.returncode, done.stdout) == (0, '[{"a":1}]\n[{"a":2}]\n')
    assert [line[:9] for line in done.stderr.splitlines()] == ["1 row in "] * 2
    done = piped(root, "  -- nothing\n")
    assert (done.returncode, "no statement on standard input" in done.stderr) == (2, True)


def test_a_reader_that_goes_away_is_no_error(root: str) -> None:
    shell = f"{HEADRACE} sql {root} 'from range(3000000)' --format csv | head -2"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ('"range"\n0\n', "")


def test_json_stays_one_document(root: str, tmp_path: Path) -> None:
    query = "select role, count(*) as n, sum(n_output) as tokens from calls group by role"
    assert document("sql", root, query, folder=tmp_path) == [{"role": "main", "n": 36, "tokens": 144}]
    assert {"name": "weights"} in document("sql", root, "show tables", folder=tmp_path)
