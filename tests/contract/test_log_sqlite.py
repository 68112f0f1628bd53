"""What only the SQLite log guarantees: all or nothing, through kill -9, and what it says of other files."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from lake import log_sqlite
from lake.log import LogCorrupt, LogUnavailable, Record
from lake.log_sqlite import SqliteLog
from lake.wire import decode
from tests.support import appender
from tests.support.events import cell, tool


def records_of(log: SqliteLog) -> list[Record]:
    reader = log.reader({("tools", 0): 0, ("tools", 1): 0, ("cells", 0): 0})
    records: list[Record] = []
    while found := reader.poll(0.0):
        records += found
    assert set(reader.lag().values()) == {0}
    reader.close()
    return records


def test_kill_9_loses_nothing_that_was_acknowledged_and_tears_no_append(tmp_path: Path) -> None:
    """Four processes in turn append batches of three events over two topics, and are killed in the act."""
    url = f"sqlite://{tmp_path}/log.db?partitions=2"
    log = SqliteLog(url)
    acknowledged: Counter[str] = Counter()
    rng = random.Random(7)
    for name in "abcd":
        process = appender.start(url, name, 1_000_000)
        appender.begin(process)
        assert process.stdout is not None
        for _ in range(rng.randrange(5, 80)):
            acknowledged[name] = int(process.stdout.readline()) + 1
        time.sleep(rng.random() * 0.002)
        process.kill()
        rest = process.stdout.read().split("\n")[:-1]  # acknowledged before the kill, read after it
        acknowledged[name] += len(rest)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    batches: Counter[tuple[str, int]] = Counter()
    for record in records_of(log):
        event = decode(record.headers, record.value)
        name = event.session if record.topic == "cells" else event.execution_id.removesuffix("-all")
        batches[name, event.time_us] += 1
    assert set(batches.values()) == {3}, "an append was torn"
    for name, count in acknowledged.items():
        written = sorted(number for by, number in batches if by == name)
        assert written == list(range(len(written)))
        assert count <= len(written) <= count + 1, "the append that the kill interrupted may be there or not"
    assert log.append([cell("after", 0)])[0][2] == log.end_offsets("cells")[0] - 1
    log.close()


def test_a_full_disk_leaves_nothing_written_and_the_log_usable(tmp_path: Path) -> None:
    log = SqliteLog(f"sqlite://{tmp_path}/log.db")
    log.append([tool("g", 0)])
    (pages,) = log._writer.execute("pragma page_count").fetchone()
    log._writer.execute(f"pragma max_page_count = {pages + 20}")
    with pytest.raises(LogUnavailable, match="the disk is full; free some space and append again"):
        log.append([cell("s", 0), *(tool("g", n, b"x" * 100_000) for n in range(1, 9))])
    assert log.end_offsets("cells") == {0: 0}
    assert log.end_offsets("tools") == {0: 1}
    log._writer.execute("pragma max_page_count = 1000000")
    assert log.append([tool("g", 1)]) == [("tools", 0, 1)]
    log.close()


def test_a_stopped_writer_is_named_after_a_bounded_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sqlite, "BUSY_S", 0.2)
    log = SqliteLog(f"sqlite://{tmp_path}/log.db")
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(LogUnavailable, match=r"held its write lock for 0\.2 s; find it with `fuser"):
        log.append([cell("s", 0)])
    assert log.end_offsets("cells") == {0: 0}, "reading is not in the way of a writer"
    other.execute("rollback")
    other.close()
    assert log.append([cell("s", 0)]) == [("cells", 0, 0)]
    log.close()


def test_a_gap_is_reported_by_name(tmp_path: Path) -> None:
    log = SqliteLog(f"sqlite://{tmp_path}/log.db")
    log.append([cell("s", n) for n in range(5)])
    other = sqlite3.connect(tmp_path / "log.db")
    with other:
        other.execute("delete from cells_0 where offset = 3")
    other.close()
    reader = log.reader({("cells", 0): 0})
    assert len(reader.poll(0.0, records_max=3)) == 3
    with pytest.raises(LogCorrupt, match="cells/0 lacks record 3"):
        reader.poll(0.0)
    assert reader.positions() == {("cells", 0): 3}
    reader.close()
    log.close()


def test_files_that_are_no_log_are_refused_and_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("create table mine (x)")
    connection.close()
    text = tmp_path / "notes.txt"
    text.write_text("something else, long enough that nobody could take it for an SQLite header" * 30)
    for path, sentence in ((foreign, "application id 0x0, layout 0"), (text, "not a database")):
        before = path.read_bytes()
        with pytest.raises(LogCorrupt, match=sentence):
            SqliteLog(f"sqlite://{path}")
        assert path.read_bytes() == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="see that its folder exists"):
        SqliteLog(f"sqlite://{tmp_path}/no/such/log.db")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite://relative/log.db", "write sqlite:///absolute/path/log.db"),
        ("sqlite:///", "write sqlite:///absolute/path/log.db"),
        ("sqlite:///x/log.db?partitions=0", "give partitions once, as a whole number from 1 on; '0'"),
        ("sqlite:///x/log.db?partitions=two", "'two' is given"),
        ("sqlite:///x/log.db?partitions=1&partitions=2", "give partitions once"),
        ("sqlite:///x/log.db?partitions=65", "partitions is 65, at most 64"),
        ("sqlite:///x/log.db?replication=1", "unknown option 'replication'; known: partitions"),
    ],
)
def test_bad_urls_are_refused(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SqliteLog(url)


def test_a_path_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """Nothing in it is decoded, since nobody encodes a folder's name before it becomes a run."""
    folder = tmp_path / "50%25 #1 ü"
    folder.mkdir()
    SqliteLog(f"sqlite://{folder}/log.db").close()
    assert (folder / "log.db").is_file()


def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from lake.log import LogError\n"
        "from lake.log_sqlite import SqliteLog\n"
        "from tests.support.events import cell\n"
        f"log = SqliteLog('sqlite://{tmp_path}/log.db')\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        log.append([cell('s', 0)])\n"
        "    except LogError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert "opened before a fork; open it in the child" in done.stdout
    assert os.path.getsize(tmp_path / "log.db") > 0
