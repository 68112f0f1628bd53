"""The embedded log: one SQLite file, one table a partition, the offset its integer primary key.

    sqlite:///abs/path/log.db?partitions=N

N is fixed when the file is made; without it the log has what is there, or 1.

What is guaranteed:

- `append` is one transaction over all partitions: all of its events or none.
- Acknowledged means on the disk: after `append` returned, `kill -9` of every process and a loss of
  power lose nothing (WAL with synchronous=FULL, one fsync an append).  The weaker NORMAL would lose
  the last appends with the power while the lake, which syncs its files, has already read them; the
  next records would then take offsets that the lake holds for done, and be skipped.
- Offsets of a partition are dense from 0; a reader that finds a gap raises LogCorrupt.
- Writers take turns (SQLite has one at a time); readers block nobody and nobody blocks them.
- A change is noticed by polling: an idle reader looks at one counter in shared memory, at most every
  PAUSE_MAX_S, so a record is seen within that time and idling costs well under 1% of a core.

The file must lie on a local disk: WAL needs shared memory between its processes.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path

from lake.blobs import Blobs
from lake.events import Event
from lake.log import LogCorrupt, LogError, LogUnavailable, Partition, Record, now_us, partition_of
from lake.log_common import (
    Entry,
    check_partitions,
    check_positions,
    count_of,
    encoded,
    partition_counts,
    url_options,
)
from lake.metrics import appending
from lake.restoring import check_follow, lacking
from lake.wire import RECORD_BYTES_MAX, Headers

RAW_BYTES_MAX = 2 * RECORD_BYTES_MAX  # as much as a topic of Kafka takes
APPLICATION_ID = 0x48445243  # "HDRC": the file is a log of ours
LAYOUT = 1  # PRAGMA user_version
# A commit with its fsync takes 0.3 ms here and 10 ms on a slow disk, a checkpoint 30 ms and a second:
# whoever waits longer than this waits for a process that is stopped, not for one that is busy.
BUSY_S = 30.0
# SQLite's own busy handler sleeps 1 to 100 ms, far longer than a commit holds the lock.
TURN_MIN_S, TURN_MAX_S = 0.0002, 0.005
PAUSE_MIN_S, PAUSE_MAX_S = 0.001, 0.05
PAGE_BYTES = 8192  # records of 2 KB: fewest bytes written an append among 4096, 8192, 16384
WAL_KEPT_BYTES = 64 << 20  # what a burst left behind is given back at the next checkpoint

_CREATE = """create table "{}" (
  offset integer primary key, appended_us integer not null, key text not null, type text not null,
  schema integer not null, event_id text not null, value blob not null)"""
_INSERT = 'insert into "{}" values (?, ?, ?, ?, ?, ?, ?)'
_SELECT = 'select * from "{}" where offset >= ? and offset < ? order by offset'
_END = '(select coalesce(max(offset) + 1, 0) from "{}")'


def _table(lane: Partition) -> str:
    return f"{lane[0]}_{lane[1]}"  # topics are words of ours: nothing to quote


def _failure(path: Path, error: sqlite3.Error) -> LogError:
    """The LogError of an SQLite error: which file, what, the next step."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LogUnavailable(
            f"log {path}: another process held its write lock for {BUSY_S:g} s; find it with `fuser {path}`"
        )
    if name.startswith("SQLITE_FULL"):
        return LogUnavailable(f"log {path}: the disk is full; free some space and append again")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR")):
        return LogCorrupt(f"log {path}: {error}; this is no log of headrace, or it is damaged: restore it")
    return LogUnavailable(f"log {path}: {error} ({name}); see that its folder exists and can be written to")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _failure(path, error) from error


def _in_turn(attempt: Callable[[], object]) -> None:
    """Run `attempt` until no other process is in its way, at most BUSY_S.  Raises sqlite3.Error."""
    deadline = time.monotonic() + BUSY_S
    pause = TURN_MIN_S
    while True:
        try:
            attempt()
            return
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise
            if time.monotonic() > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))  # apart, so that two do not meet again
        pause = min(2 * pause, TURN_MAX_S)


def _tables(connection: sqlite3.Connection, path: Path) -> set[str]:
    """The tables of the file.  Raises LogCorrupt where they are not ours."""
    (found,) = connection.execute("pragma application_id").fetchone()
    (layout,) = connection.execute("pragma user_version").fetchone()
    rows = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
    if rows and (found, layout) != (APPLICATION_ID, LAYOUT):
        raise LogCorrupt(
            f"log {path}: an SQLite file with application id {found:#x}, layout {layout}, "
            f"not a log ({APPLICATION_ID:#x}, {LAYOUT}); give another path"
        )
    return {name for (name,) in rows}


def _connect(path: Path, busy_s: float = BUSY_S) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=busy_s, isolation_level=None, check_same_thread=False, cached_statements=1024
    )
    try:
        _in_turn(lambda: _tables(connection, path))  # before anything of it is changed
        connection.execute(f"pragma page_size = {PAGE_BYTES}")
        _in_turn(lambda: connection.execute("pragma journal_mode = wal").fetchall())
        connection.execute("pragma synchronous = full")
        connection.execute(f"pragma journal_size_limit = {WAL_KEPT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


class SqliteLog:
    """The log in an SQLite file; see the module for its guarantees.

    Threads share one object: its appends take turns, its readers are each for one thread at a time.
    Not across a fork: the child opens its own.
    """

    def __init__(self, url: str, clock: Callable[[], int] = now_us, blobs: Blobs | None = None) -> None:
        """Open the log, made where the file does not exist (its folder must).

        Raises ValueError for a bad URL or another number of partitions than the log has,
        LogCorrupt for a file that is something else, LogUnavailable where it cannot be opened.
        """
        rest, options = url_options(url, ("partitions",))
        self._path = Path(rest.removeprefix("sqlite://"))
        if not rest.startswith("sqlite:///") or not self._path.name:
            raise ValueError(f"log {url!r}: write sqlite:///absolute/path/log.db, optionally ?partitions=N")
        self._clock = clock
        self.blobs = blobs
        self._pid = os.getpid()
        self._write_lock = threading.Lock()
        self._ask_lock = threading.Lock()
        with _explained(self._path):
            self._writer = _connect(self._path, busy_s=0)  # it waits by _in_turn
            self._asker = _connect(self._path)
            try:
                self._counts = partition_counts(self._create(options.get("partitions")))
            except BaseException:
                self.close()
                raise

    def _create(self, wanted: int | None) -> int:
        """The number of partitions, of the log that is there or of the one made now."""
        with self._transaction() as connection:
            tables = _tables(connection, self._path)
            if not tables:
                number = wanted or 1
                for topic, count in partition_counts(number).items():
                    for partition in range(count):
                        connection.execute(_CREATE.format(_table((topic, partition))))
                connection.execute(f"pragma application_id = {APPLICATION_ID}")
                connection.execute(f"pragma user_version = {LAYOUT}")
                return number
        there = sum(name.startswith("calls_") for name in tables)
        if wanted is not None and wanted != there:
            raise ValueError(
                f"log {self._path}: has {there} partitions, asked for {wanted}; "
                "their number is fixed when a log is made: leave it out, or give another path"
            )
        return there

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The write connection within a transaction, committed at the end or rolled back."""
        if os.getpid() != self._pid:
            raise LogError(f"log {self._path}: opened before a fork; open it in the child")
        if not self._write_lock.acquire(timeout=BUSY_S):
            raise LogUnavailable(f"log {self._path}: other threads append since {BUSY_S:g} s; append again")
        try:
            with _explained(self._path):
                _in_turn(lambda: self._writer.execute("begin immediate"))
                try:
                    yield self._writer
                    self._writer.execute("commit")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._writer.execute("rollback")
                    raise
        finally:
            self._write_lock.release()

    @appending("sqlite")
    def _write(self, entries: Sequence[Entry]) -> list[tuple[str, int, int]]:
        """Write entries in one transaction; (topic, partition, offset) of each."""
        places: list[tuple[str, int, int]] = []
        rows: dict[Partition, list[tuple[object, ...]]] = {}
        ends: dict[Partition, int] = {}
        with self._transaction() as connection:
            now = self._clock()
            for entry in entries:
                lane = (entry.topic, partition_of(entry.key, self._counts[entry.topic]))
                if lane not in ends:
                    (ends[lane],) = connection.execute("select " + _END.format(_table(lane))).fetchone()
                offset = ends[lane]
                ends[lane] = offset + 1
                head = entry.headers
                row = (offset, now, entry.key, head.type, head.schema, head.event_id, entry.value)
                rows.setdefault(lane, []).append(row)
                places.append((*lane, offset))
            for lane, batch in rows.items():
                connection.executemany(_INSERT.format(_table(lane)), batch)
        return places

    def append(self, events: Sequence[Event]) -> list[tuple[str, int, int]]:
        """See Log.append; all of the events or, where an error is raised, none of them."""
        entries = encoded(events, self.blobs)
        return self._write(entries) if entries else []

    def append_raw(self, topic: str, key: str, headers: Headers, value: bytes) -> int:
        count_of(self._counts, topic)
        if len(value) > RAW_BYTES_MAX:
            raise LogError(f"log {self._path}: a record of {len(value)} bytes; a topic takes {RAW_BYTES_MAX}")
        ((_, _, offset),) = self._write([Entry(topic, key, headers, value)])
        return offset

    def restore(self, records: Sequence[Record]) -> int:
        """See Log.restore; all of the records or, where an error is raised, none of them."""
        new = lacking(self, records)
        lanes = sorted({(r.topic, r.partition) for r in new})
        with self._transaction() as connection:
            check_follow(new, _ends(connection, lanes))  # nobody appended meanwhile
            for lane in lanes:
                rows = [
                    (r.offset, r.appended_us, r.key, h.type, h.schema, h.event_id, r.value)
                    for r in new
                    if (r.topic, r.partition) == lane
                    for h in (r.headers,)
                ]
                connection.executemany(_INSERT.format(_table(lane)), rows)
        return len(new)

    def reader(self, start: Mapping[Partition, int]) -> SqliteReader:
        """Raises ValueError for a partition that is not there, LogCorrupt for an offset past the end."""
        return SqliteReader(self._path, self._counts, start)

    def partitions(self, topic: str) -> int:
        return count_of(self._counts, topic)

    def begin_offsets(self, topic: str) -> dict[int, int]:
        """Zero: nothing is ever taken away."""
        return dict.fromkeys(range(count_of(self._counts, topic)), 0)

    def end_offsets(self, topic: str) -> dict[int, int]:
        lanes = [(topic, p) for p in range(count_of(self._counts, topic))]
        with self._ask_lock, _explained(self._path):
            return {p: end for (_, p), end in _ends(self._asker, lanes).items()}

    def close(self) -> None:
        """Close the write connection; readers stay open.  May be called twice."""
        with self._write_lock, self._ask_lock:
            self._writer.close()
            self._asker.close()


def _ends(connection: sqlite3.Connection, lanes: Sequence[Partition]) -> dict[Partition, int]:
    """The end offset of each partition, by one statement."""
    if not lanes:
        return {}
    row = connection.execute("select " + ", ".join(_END.format(_table(lane)) for lane in lanes)).fetchone()
    return dict(zip(lanes, row, strict=True))


class SqliteReader:
    """Reads partitions from given offsets on, on a connection of its own."""

    def __init__(self, path: Path, counts: Mapping[str, int], start: Mapping[Partition, int]) -> None:
        check_partitions(counts, start)
        self._path = path
        self._counts = counts
        self._positions: dict[Partition, int] = dict(start)
        self._turn = 0  # where the next read begins, so that no partition starves the others
        self._pause = PAUSE_MIN_S
        self._read_up_to: int | None = None  # the data version at which nothing was left to read
        with _explained(path):
            self._connection = _connect(path)
        # text that is none (written by another program, or damaged) is a bad record, not the log's end
        self._connection.text_factory = methodcaller("decode", "utf-8", "replace")
        try:
            self.seek(start)
        except BaseException:
            self._connection.close()
            raise

    def poll(self, wait_s: float, records_max: int = 2000, bytes_max: int = 8 << 20) -> list[Record]:
        deadline = time.monotonic() + wait_s
        while True:
            with _explained(self._path):
                records = self._next(records_max, bytes_max)
            if records:
                self._pause = PAUSE_MIN_S
                return records
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(self._pause, left))
            self._pause = min(2 * self._pause, PAUSE_MAX_S)

    def _next(self, records_max: int, bytes_max: int) -> list[Record]:
        (version,) = self._connection.execute("pragma data_version").fetchone()
        if version == self._read_up_to:
            return []
        ends = _ends(self._connection, list(self._positions))
        behind = [lane for lane, end in ends.items() if end > self._positions[lane]]
        if not behind:
            self._read_up_to = version  # taken before the ends were: a later change shows as another
            return []
        self._turn += 1
        first = self._turn % len(behind)
        records: list[Record] = []
        reached = dict(self._positions)
        room = bytes_max
        for i, lane in enumerate(behind[first:] + behind[:first]):
            share = -(-(records_max - len(records)) // (len(behind) - i))
            stop = min(ends[lane], reached[lane] + share)
            reached[lane], room = self._read(lane, reached[lane], stop, room, records)
            if room <= 0 or len(records) >= records_max:
                break
        self._positions = reached
        return records

    def _read(
        self, lane: Partition, position: int, stop: int, room: int, into: list[Record]
    ) -> tuple[int, int]:
        """Read a partition's [position, stop) while there is room, in bytes; where it ended, room left."""
        topic, partition = lane
        cursor = self._connection.execute(_SELECT.format(_table(lane)), (position, stop))
        try:
            for offset, appended_us, key, kind, schema, event_id, value in cursor:
                if offset != position:
                    break
                headers = Headers(kind, schema, event_id)
                into.append(Record(topic, partition, offset, key, headers, value, appended_us))
                position += 1
                room -= len(value)
                if room <= 0:
                    break
        finally:
            cursor.close()  # an open cursor would hold the WAL back from being used again
        if position < stop and room > 0:
            raise LogCorrupt(f"log {self._path}: {topic}/{partition} lacks record {position}; restore it")
        return position, room

    def positions(self) -> dict[Partition, int]:
        return dict(self._positions)

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Go on from these offsets.  Raises as `SqliteLog.reader` does, and then stays where it was."""
        unread = [lane for lane in positions if lane not in self._positions]
        if unread:
            raise ValueError(f"seek to {unread}: this reader reads {sorted(self._positions)}")
        with _explained(self._path):
            ends = _ends(self._connection, list(positions))
        check_positions(f"log {self._path}", positions, dict.fromkeys(positions, 0), ends)
        self._positions.update(positions)
        self._read_up_to = None

    def lag(self) -> dict[Partition, int]:
        with _explained(self._path):
            ends = _ends(self._connection, list(self._positions))
        return {lane: end - self._positions[lane] for lane, end in ends.items()}

    def close(self) -> None:
        self._connection.close()
