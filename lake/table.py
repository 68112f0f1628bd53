"""One Delta table: rows and offsets in one commit, reading by group, columns that are added.

    append:  see what others committed -> check `expected` -> write and fsync a file -> commit -> fsync
    read:    files by their range of group ids -> row groups by theirs -> rows

A commit is of one file at most, so a file's name is also how an uncertain commit is found again:
one whose answer was lost, because an object store was away.  Rows come in the order of the commits
and, within a file, by group, and within a group in the order of the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from lake import failure
from lake.durable import sync
from lake.parquet import (
    COMMIT_LEVEL,
    MERGE_LEVEL,
    FileReader,
    FileWriter,
    Reads,
    by_group,
    holds,
    is_quick,
)
from lake.store_errors import (
    Fenced,
    FileGone,
    SchemaDiffers,
    StoreError,
    StoreUnavailable,
    plain,
    telling,
    told,
)

CHECKPOINT_COMMITS = 20
"""delta-rs reads the commits since the last checkpoint again and again: an append takes 0.5 ms more for each,
a checkpoint 30 ms.  Over 110 appends: 9.1 s with 100, 5.3 s with 20, 5.0 s with 10 (a machine under load)."""
KEPT = {  # of a new table: how far back one can go, and how many commits are listed
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
REPLACED = "replaced"
"""App id that counts replacements of files: delta-rs lets two commits remove one file, not move one id."""
ATTEMPTS = 20
"""Of a commit that others disturb without moving its offsets: a column added, a table compacted."""
S3_WAIT = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 2}}
DELTA_WAIT = {"timeout": "20s", "connect_timeout": "5s", "retry_timeout": "20s", "max_retries": "4"}
"""A store that is away is told within about half a minute; the writer then tries again."""


@dataclass(frozen=True)
class FileEntry:
    """A file of one version of a table."""

    name: str
    size: int
    rows: int
    low: str | None  # range of group ids, where it is known
    high: str | None

    @property
    def stamp_ns(self) -> int:
        """When it was begun (of a file that replaced others: when the first of them was)."""
        return int(self.name.split("-")[1])

    def may_hold(self, groups: Sequence[str]) -> bool:
        """Whether it may hold rows of these groups (sorted)."""
        return self.low is None or self.high is None or holds((self.low, self.high), groups)


class Table:
    """One Delta table.  A handle is not shared between threads.

    `schema` is what was declared (or, of an existing table, all it has): those columns are written
    and read.  The table may have more; they stay null in rows that this handle writes.
    """

    def __init__(self, uri: str, schema: pa.Schema, delta: DeltaTable | None = None) -> None:
        self.uri, self.schema = uri, schema
        self.fs, self.root = filesystem(uri)
        self.local = is_local(self.fs)
        self._files = FileReader(self.fs, local=self.local)
        self._entries: tuple[int, list[FileEntry]] = (-1, [])
        self._uncertain: tuple[str | None, dict[str, int]] | None = None
        with telling(uri, local=self.local):
            self.delta = delta or self._open()
            if delta is None:
                self._evolve()

    def _open(self) -> DeltaTable:
        for attempt in range(ATTEMPTS):
            try:
                return open_delta(self.uri, local=self.local)
            except TableNotFoundError:
                if self.local:
                    os.makedirs(self.root, exist_ok=True)
            try:
                DeltaTable.create(
                    self.uri,
                    schema=self.schema,
                    mode="ignore",
                    configuration=KEPT,
                    storage_options=None if self.local else DELTA_WAIT,
                )
            except (CommitFailedError, DeltaError):  # another process creates it at this moment
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(0.05)
        raise StoreError(f"{self.uri} cannot be created: it is neither there nor can it be made")

    def _evolve(self) -> None:
        """Give the table the declared columns that it lacks.  Raises SchemaDiffers for a changed type."""
        for attempt in range(ATTEMPTS):
            there = {f.name: f for f in self.delta.schema().fields}
            declared = DeltaSchema.from_arrow(self.schema).fields
            changed = [f for f in declared if f.name in there and f.type != there[f.name].type]
            if changed:
                raise SchemaDiffers(
                    f"{self.uri}: "
                    + ", ".join(f"{f.name} is {there[f.name].type}, declared {f.type}" for f in changed)
                    + "; a column keeps its type: declare another name"
                )
            missing = [f for f in declared if f.name not in there]
            if not missing:
                return
            try:
                self.delta.alter.add_columns(missing)
            except DeltaError as error:  # another process adds them at this moment
                if attempt == ATTEMPTS - 1:
                    raise StoreError(
                        f"{self.uri}: columns {', '.join(f.name for f in missing)} cannot be added: {error}"
                    ) from error
            self.delta = open_delta(self.uri, local=self.local)

    @property
    def version(self) -> int:
        return int(self.delta.version())

    @property
    def reads(self) -> Reads:
        """What this handle has read so far."""
        return self._files.reads

    def offset(self, app_id: str) -> int | None:
        """The offset that the newest commit seen by this handle carries for `app_id`."""
        with telling(self.uri, local=self.local):  # it may read commits again
            found = self.delta.transaction_version(app_id)
        return None if found is None else int(found)

    def refresh(self) -> None:
        """See what others committed since."""
        if self.local and not os.path.exists(self._commit_file(self.version + 1)):
            return  # versions have no gaps: nothing is newer
        with telling(self.uri, local=self.local):
            self.delta.update_incremental()

    def append(
        self,
        rows: pa.Table,
        offsets: Mapping[str, int] | None = None,
        expected: Mapping[str, int | None] | None = None,
    ) -> int:
        """Commit rows and offsets together; the table's new version.  Durable when it returns.

        rows      a table of this schema; may be empty when there are offsets to commit
        offsets   app id -> offset, monotone
        expected  app id -> the offset that must stand there now; give it for ids that `offsets` has
        Raises Fenced where `expected` does not hold or another handle committed the same app id.
        Raises StoreFull and StoreUnavailable where nothing was committed, or where that could not be
        asked: the same call may be made again, and is not repeated if it was committed after all.
        """
        wanted = dict(offsets or {})
        self.refresh()
        if self._uncertain is not None and self._uncertain[1] == wanted and self._landed(*self._uncertain):
            self._uncertain = None
            return self._settle(self.version)
        self._uncertain = None
        for app_id, want in (expected or {}).items():
            found = self.offset(app_id)
            if found != want:
                raise Fenced(f"{self.uri}: {app_id} stands at {found}, this writer left it at {want}")
        adds = [self._write(rows)] if rows.num_rows else []
        if not adds and not wanted:
            return self.version
        failure.reach("store.before-commit")
        before = self.version
        self._commit(adds, wanted)
        self._settle(before)
        failure.reach("store.after-commit")
        return self.version

    def _commit(self, adds: Sequence[Any], offsets: dict[str, int]) -> None:
        name = adds[0].path if adds else None
        stood = {app_id: self.offset(app_id) for app_id in offsets}
        for attempt in range(ATTEMPTS):
            try:
                self._transact(adds, offsets)
                return
            except CommitFailedError as error:
                self._recheck(name, offsets, error)
                if name is not None and self._landed(name, {}):
                    return  # it was ours: the answer was lost and delta-rs tried again
                moved = [a for a in offsets if self.offset(a) != stood[a]]
                if moved or attempt == ATTEMPTS - 1:
                    self._remove(name)
                    raise Fenced(
                        f"{self.uri}: {', '.join(moved) or 'the table'} moved: {plain(error)}"
                    ) from error
            except Exception as error:
                self._recheck(name, offsets, error)
                if self._landed(name, offsets):
                    return
                self._remove(name)
                raise told(error, self.uri, local=self.local) from error

    def replace(self, old: Sequence[FileEntry], parts: Iterable[pa.Table]) -> bool:
        """One commit that puts a file of `parts` in the place of files that hold the same rows.

        parts   rows of the table's whole schema, sorted by group over all parts
        Others may append meanwhile.  False, and nothing changed, where another replaced files since
        this handle was refreshed: see what stands, and choose again.
        """
        name = new_name(old[0].stamp_ns)  # it stands where they stood
        add = self._write_parts(name, parts, data_change=False)
        removes = [RemoveAction(e.name, False, time.time_ns() // 1_000_000, e.size, {}) for e in old]
        failure.reach("store.before-commit")
        before = self.version
        try:
            self._commit([add, *removes], {REPLACED: (self.offset(REPLACED) or 0) + 1})
        except Fenced:
            return False
        self._settle(before)
        failure.reach("store.after-commit")
        return True

    def _transact(self, actions: Sequence[Any], offsets: Mapping[str, int]) -> None:
        """One commit of file actions and app transactions, as delta-rs makes it: no check, no fsync."""
        self.delta.create_write_transaction(
            list(actions),
            mode="append",
            schema=self.delta.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(a, v) for a, v in offsets.items()], max_commit_retries=100
            ),
        )

    def _recheck(self, name: str | None, offsets: dict[str, int], error: Exception) -> None:
        """See what stands after a commit that failed or may have."""
        try:
            self.refresh()
        except StoreError:
            self._uncertain = (name, offsets)
            raise StoreUnavailable(f"{self.uri}: the answer to a commit was lost: {plain(error)}") from error

    def _landed(self, name: str | None, offsets: Mapping[str, int]) -> bool:
        """Whether a commit of this file and these offsets stands."""
        there = name is None or any(uri.endswith(name) for uri in self.delta.file_uris())
        return there and all(self.offset(app_id) == offset for app_id, offset in offsets.items())

    def _remove(self, name: str | None) -> None:
        """Take away a file that no commit names; what cannot be removed now is vacuumed later."""
        if name is not None:
            with contextlib.suppress(Exception):  # the failure that led here is the one to tell
                self.fs.rm_file(f"{self.root}/{name}")

    def _write(self, rows: pa.Table) -> AddAction:
        rows = by_group(rows.select(self.schema.names).cast(self.schema))
        return self._write_parts(new_name(time.time_ns()), [rows], data_change=True, quick=is_quick(rows))

    def _write_parts(
        self, name: str, parts: Iterable[pa.Table], *, data_change: bool, quick: bool = False
    ) -> AddAction:
        """Write one Parquet file, durable before its name is known to anybody."""
        failure.reach("store.before-write")
        writer = None
        try:
            path, level = f"{self.root}/{name}", COMMIT_LEVEL if data_change else MERGE_LEVEL
            writer = FileWriter(self.fs, path, self.schema, local=self.local, quick=quick, level=level)
            for rows in parts:
                writer.write(rows)
            size = writer.close()
        except Exception as error:
            if writer is not None:
                writer.abandon()
            self._remove(name)
            raise told(error, self.uri, local=self.local) from error
        failure.reach("store.after-write")
        return AddAction(
            path=name,
            size=size,
            partition_values={},
            modification_time=time.time_ns() // 1_000_000,
            data_change=data_change,
            stats=json.dumps(writer.kept),
        )

    def _commit_file(self, version: int) -> str:
        return os.path.join(self.root, "_delta_log", f"{version:020d}.json")

    def _settle(self, before: int) -> int:
        """See the own commit and make it durable; the version that this handle sees then."""
        self.refresh()
        if self.local:
            with telling(self.uri, local=True):
                for version in range(before + 1, self.version + 1):
                    if os.path.exists(self._commit_file(version)):
                        sync(self._commit_file(version))
                sync(os.path.join(self.root, "_delta_log"))
        return self.version

    def entries(self) -> list[FileEntry]:
        """The files of the version that this handle sees, in commit order."""
        if self._entries[0] != self.version:
            listed = self.delta.get_add_actions(flatten=True)
            adds = pa.RecordBatchReader.from_stream(listed).read_all()  # pa.table would import pandas
            adds = adds.sort_by("path")
            nothing = [None] * adds.num_rows
            low, high = (
                adds[name].to_pylist() if name in adds.column_names else nothing
                for name in ("min.group_id", "max.group_id")
            )
            names, sizes, rows = (adds[n].to_pylist() for n in ("path", "size_bytes", "num_records"))
            found = [FileEntry(*each) for each in zip(names, sizes, rows, low, high, strict=True)]
            self._entries = (self.version, found)
        return self._entries[1]

    def path(self, entry: FileEntry) -> str:
        """A file's path, as its own file system takes it."""
        return f"{self.root}/{entry.name}"

    def files(self, groups: Sequence[str] | None = None) -> list[str]:
        """Paths (of an object store: URLs) of the files that may hold rows of these groups (None: all)."""
        wanted = None if groups is None else sorted(groups)
        prefix = self.root if self.local else self.uri.rstrip("/")
        return [f"{prefix}/{e.name}" for e in self.entries() if wanted is None or e.may_hold(wanted)]

    def read(self, groups: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows (of these groups; None: all), as this handle sees the table; null where a file lacks a column.

        A handle that sees a version whose files were compacted and vacuumed since sees the newest instead.
        """
        names = list(columns) if columns is not None else self.schema.names
        wanted = None if groups is None else sorted(set(groups))
        extra = [] if wanted is None or "group_id" in names else ["group_id"]
        schema = pa.schema([self.schema.field(n) for n in [*names, *extra]])
        for attempt in (1, 2):
            entries = [e for e in self.entries() if wanted is None or e.may_hold(wanted)]
            try:
                parts = [self.read_entry(e, schema, wanted) for e in entries]
                break
            except FileGone:
                if attempt == 2:
                    raise
                self.refresh()
        table = pa.concat_tables([schema.empty_table(), *parts])
        if wanted is not None:
            table = table.filter(pc.is_in(table["group_id"], value_set=pa.array(wanted, pa.string())))
        return table.select(names)

    def read_entry(
        self,
        entry: FileEntry,
        schema: pa.Schema,
        groups: Sequence[str] | None = None,
        parts: Sequence[int] | None = None,
    ) -> pa.Table:
        """Columns of one file, as `FileReader.read`.  Raises FileGone where it was vacuumed."""  # fmt: skip
        try:
            with telling(self.uri, local=self.local):
                return self._files.read(self.path(entry), schema, groups, parts)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise FileGone(f"{self.path(entry)} is gone: vacuumed? refresh and read again") from error
            raise

    def row_groups(self, entry: FileEntry) -> int:
        """How many row groups a file has."""
        with telling(self.uri, local=self.local):
            return len(self._files.footer(self.path(entry)).ranges)

    def memory_bytes(self, entry: FileEntry) -> int:
        """About the bytes of a file's rows, uncompressed."""
        with telling(self.uri, local=self.local):
            metadata = self._files.footer(self.path(entry)).metadata
            return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))

    def tail(self, columns: Sequence[str], rows: int) -> pa.Table:
        """At least the newest `rows` rows (all, if there are fewer), from the newest files, read whole."""
        chosen: list[FileEntry] = []
        for entry in reversed(self.entries()):
            if sum(e.rows for e in chosen) >= rows:
                break
            chosen.append(entry)
        schema = pa.schema([self.schema.field(n) for n in columns])
        parts = [self.read_entry(e, schema) for e in reversed(chosen)]
        return pa.concat_tables([schema.empty_table(), *parts])


def filesystem(uri: str) -> tuple[Any, str]:
    """The file system of a URI and the path in it."""
    options = {"config_kwargs": S3_WAIT} if uri.startswith("s3://") else {}
    fs, path = fsspec.core.url_to_fs(uri, **options)
    if hasattr(fs, "retries"):
        fs.retries = 1  # of s3fs, around those of botocore
    return fs, path


def is_local(fs: Any) -> bool:
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def open_delta(uri: str, *, local: bool) -> DeltaTable:
    return DeltaTable(uri, storage_options=None if local else DELTA_WAIT)


def new_name(stamp_ns: int) -> str:
    """A file's name: in the order of names, files stand in the order of their stamps."""
    return f"part-{stamp_ns:020d}-{uuid.uuid4().hex[:8]}.parquet"
