"""A query is bounded in memory and on disk, and is stopped: by Ctrl-C, by a deadline, from another thread."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import psutil
import pytest

from lake.query import Lake, QueryError, QueryStopped, open_lake
from lake.stopping import BESIDE_BYTES, Runner
from tests.support import small_lake
from tests.support.command import HEADRACE, headrace, start

ENDLESS = (
    "select count(*) from generate_series(1, 1000000) a(x), generate_series(1, 1000000) b(y) where x + y = 3"
)
ROWS = 12_000_000
SORTED = f"select hash(i) as h, i from range({ROWS}) t(i) order by h"
SPILLED = "headrace-sql-*"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_lake.make(tmp_path_factory.mktemp("lake"))


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files of this process go: that of the test alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _peak(process: subprocess.Popen[str]) -> int:
    """The most memory that a process held until it ended, in bytes, looked at often."""
    most, seen = 0, psutil.Process(process.pid)
    while process.poll() is None:
        try:
            most = max(most, seen.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.01)
    return most


def test_another_thread_interrupts_and_the_next_query_runs(root: str) -> None:
    lake = open_lake(root)
    for run in (lake.rows, lambda query: list(lake.stream(query)[1])):
        timer = threading.Timer(0.5, lake.interrupt)
        timer.start()
        with pytest.raises(QueryStopped, match="interrupted"):
            run(ENDLESS)
        timer.join()
        assert lake.rows("select count(*) as n from event_calls") == [{"n": 36}]
    lake.close()


def test_a_relation_is_interrupted_too(root: str) -> None:
    lake = open_lake(root)
    timer = threading.Timer(0.5, lake.interrupt)
    timer.start()
    with pytest.raises(duckdb.InterruptException):
        lake.sql(ENDLESS).fetchall()
    timer.join()
    lake.close()


def test_a_lake_opened_with_a_timeout_stops_its_queries(root: str) -> None:
    lake = open_lake(root, timeout_s=0.5)
    with pytest.raises(QueryStopped, match="longer than it may"):
        lake.rows(ENDLESS)
    assert lake.rows("select 1 as a") == [{"a": 1}]
    lake.close()


def test_rows_that_come_slowly_have_a_deadline(root: str) -> None:
    lake = open_lake(root)
    runner = Runner(lake, timeout_s=0.5)
    runner.begin()
    _, batches = lake.stream("from range(1000000000000)")
    slow = (time.sleep(0.01) for _ in runner.each(batches))
    with pytest.raises(QueryStopped, match=r"longer than 0\.5 s"):
        list(slow)
    runner.begin()
    assert runner.call(lambda: lake.rows("select 1 as a")) == [{"a": 1}]
    runner.close()
    lake.close()


def test_a_large_sort_spills_into_a_folder_that_is_removed(root: str, spills: Path) -> None:
    lake = open_lake(root, memory="100MB")
    _, batches = lake.stream(SORTED)
    first = next(batches)
    assert [p.name for p in spills.glob(SPILLED)]
    last, rows = first["h"][-1].as_py(), first.num_rows
    for batch in batches:
        assert last <= batch["h"][0].as_py()
        last, rows = batch["h"][-1].as_py(), rows + batch.num_rows
    assert rows == ROWS
    lake.close()
    assert list(spills.iterdir()) == []


def test_what_spills_has_a_bound(root: str, spills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 64 << 20})
    monkeypatch.setattr("lake.query.shutil.disk_usage", lambda _path: usage)
    lake = open_lake(root, memory="64MB")
    with pytest.raises(QueryStopped, match=r"out of memory: .*spills to disk has a bound"):
        list(lake.stream(SORTED)[1])
    assert lake.rows("select 1 as a") == [{"a": 1}]
    lake.close()
    assert list(spills.iterdir()) == []


@pytest.mark.parametrize(
    "query",
    [
        "select length(repeat('x', 3000000000))",  # within one value, which DuckDB's own limit does not count
        "select len(range(2000000000))",
        "select len(list(i)) from range(500000000) t(i)",
        "with recursive r as (select 1 as i, 'x' as s union all select i + 1, s || s from r where i < 40) "
        "select max(length(s)) from r",
    ],
)
def test_what_cannot_spill_fails_by_name_in_bounded_memory(root: str, tmp_path: Path, query: str) -> None:
    with start(["sql", root, query, "--memory", "200MB"], tmp_path) as process:
        peak = _peak(process)
        _, err = process.communicate()
    assert (process.returncode, err.splitlines()[-1][:29]) == (1, "QueryStopped: out of memory: ")
    assert "Traceback" not in err
    assert peak < (200 << 20) + BESIDE_BYTES + (300 << 20)


def test_a_result_of_any_size_is_written_in_bounded_memory(root: str, tmp_path: Path) -> None:
    query = "select i, repeat('x', 200) as s from range(5000000) t(i)"  # a gigabyte
    arguments = ["sql", root, query, "--format", "parquet", "--output", "x.parquet", "--memory", "200MB"]
    with start(arguments, tmp_path) as process:
        peak = _peak(process)
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert peak < 700 << 20
    assert (tmp_path / "x.parquet").is_file()


def test_ctrl_c_ends_the_command_with_a_sentence(root: str, tmp_path: Path) -> None:
    (tmp_path / "two.sql").write_text(f"select 'first' as a;\n{ENDLESS};")
    with (tmp_path / "two.sql").open() as source:
        process = subprocess.Popen(
            [HEADRACE, "sql", root, "--format", "csv"],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ['"a"\n', '"first"\n']
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, "", "QueryStopped: interrupted\n")


def test_a_command_that_is_ended_leaves_nothing_in_the_temporary_folder(root: str, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    arguments = ["sql", root, SORTED, "--memory", "100MB", "--format", "csv", "--output", "x.csv"]
    with start(arguments, tmp_path, {"TMPDIR": str(tmp_path / "tmp")}) as process:
        while not list((tmp_path / "tmp").glob(f"{SPILLED}/*")):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "QueryStopped: interrupted\n")
    assert [p.name for p in tmp_path.rglob("*")] == ["tmp"]


def test_the_command_has_a_timeout(root: str, tmp_path: Path) -> None:
    done = headrace("sql", root, ENDLESS, "--timeout", "0.5", folder=tmp_path, status=1)
    assert done.stderr == "QueryStopped: the query took longer than 0.5 s, and was stopped\n"


def test_a_memory_that_is_none_is_refused(root: str, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="memory 'much' is no size; write 2GB"):
        open_lake(root, memory="much")
    said = headrace("sql", root, "select 1", "--memory", "much", folder=tmp_path, status=2).stderr
    assert "'much' is no size" in said


def test_without_a_memory_it_is_half_of_what_there_is(root: str) -> None:
    lake: Lake = open_lake(root)
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    assert lake.memory_bytes() <= half * 1.01
    lake.close()
