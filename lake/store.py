"""The lake: Delta tables of Parquet on any fsspec path.

    store = Store("/runs/demo/lake")            or s3://bucket/lake
    table = store.table("events/calls", schema)
    table.append(rows, offsets={"log/calls/0": 1200})   rows and offsets in one commit
    table.read(groups=["g-000012"])                     files are pruned by their range of group ids

A Delta app transaction carries each log offset inside the commit that holds the rows, so a crash
between write and commit repeats nothing and loses nothing.  Files are written and fsynced before
they are registered (delta-rs itself does not fsync local files).

An object store's address and keys come from the environment, as its own tools read them: for S3
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true for plain http.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from lake import failure

ROW_GROUP_ROWS = 2000


class StoreError(Exception):
    """The lake could not do what was asked."""


class Fenced(StoreError):
    """Another writer moved the offsets: this one is a zombie and must stop."""


class Table:
    """One Delta table.  A handle is not shared between threads."""

    def __init__(self, uri: str, schema: pa.Schema, delta: DeltaTable | None = None) -> None:
        self.uri, self.schema = uri, schema
        self._fs, self._root = fsspec.core.url_to_fs(uri)
        self.local = self._fs.protocol in ("file", ("file", "local"))
        self._delta = delta or self._open()

    def _open(self) -> DeltaTable:
        try:
            return DeltaTable(self.uri)
        except TableNotFoundError:
            if self.local:
                os.makedirs(self._root, exist_ok=True)
            DeltaTable.create(
                self.uri,
                schema=self.schema,
                mode="ignore",
                configuration={"delta.checkpointInterval": "100"},
            )
            return DeltaTable(self.uri)

    @property
    def version(self) -> int:
        return int(self._delta.version())

    def offset(self, app_id: str) -> int | None:
        """The offset that the newest commit seen by this handle carries for `app_id`."""
        found = self._delta.transaction_version(app_id)
        return None if found is None else int(found)

    def refresh(self) -> None:
        """See what others committed since."""
        self._delta.update_incremental()

    def append(
        self,
        rows: pa.Table,
        offsets: Mapping[str, int] | None = None,
        expected: Mapping[str, int | None] | None = None,
    ) -> int:
        """Commit rows and offsets together; the table's new version.

        rows      a table of this schema; may be empty when there are offsets to commit
        offsets   app id -> offset, monotone
        expected  app id -> the offset that must stand there now
        Raises Fenced where `expected` does not hold or another handle committed the same app id.
        """
        offsets = offsets or {}
        for app_id, want in (expected or {}).items():
            found = self.offset(app_id)
            if found != want:
                raise Fenced(f"{self.uri}: {app_id} stands at {found}, this writer left it at {want}")
        adds = [self._write(rows)] if rows.num_rows else []
        if not adds and not offsets:
            return self.version
        properties = CommitProperties(app_transactions=[Transaction(a, v) for a, v in offsets.items()])
        failure.reach("store.before-commit")
        try:
            self._delta.create_write_transaction(
                adds, mode="append", schema=self._delta.schema(), commit_properties=properties
            )
        except CommitFailedError as error:
            raise Fenced(f"{self.uri}: {error}") from error
        self._delta.update_incremental()
        self._sync_commit()
        failure.reach("store.after-commit")
        return self.version

    def _write(self, rows: pa.Table) -> AddAction:
        """Write one Parquet file, durable before its name is known to anybody."""
        failure.reach("store.before-write")
        rows = rows.select(self.schema.names).cast(self.schema)
        name = f"part-{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"
        path = f"{self._root}/{name}"
        flat = [f.name for f in self.schema if not pa.types.is_nested(f.type) and f.type != pa.binary()]
        with self._fs.open(path, "wb") as sink:
            pq.write_table(
                rows,
                sink,
                row_group_size=ROW_GROUP_ROWS,
                compression="zstd",
                use_dictionary=[f.name for f in self.schema if f.type == pa.string()],
                write_statistics=flat,
            )
            size = sink.tell()
            if self.local:
                sink.flush()
                os.fsync(sink.fileno())
        failure.reach("store.after-write")
        return AddAction(
            path=name,
            size=size,
            partition_values={},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps(_statistics(rows)),
        )

    def _sync_commit(self) -> None:
        """fsync the newest commit file and the folder it lies in (local tables)."""
        if not self.local:
            return
        folder = os.path.join(self._root, "_delta_log")
        newest = os.path.join(folder, f"{self.version:020d}.json")
        for path in (newest, folder):
            if os.path.exists(path):
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def files(self, groups: Sequence[str] | None = None) -> list[str]:
        """Paths of the files (in commit order) that may hold rows of these groups (None: all)."""
        adds = pa.table(self._delta.get_add_actions(flatten=True)).sort_by("path")
        if groups is not None and "min.group_id" in adds.column_names:
            low, high = adds["min.group_id"], adds["max.group_id"]
            unknown = pc.is_null(low)
            hits = [pc.and_(pc.less_equal(low, g), pc.greater_equal(high, g)) for g in groups]
            keep = unknown
            for hit in hits:
                keep = pc.or_(keep, pc.fill_null(hit, fill_value=False))
            adds = adds.filter(keep)
        prefix = self._root if self.local else self.uri.rstrip("/")
        return [f"{prefix}/{name}" for name in adds["path"].to_pylist()]

    def read(self, groups: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows (of these groups; None: all), in commit order, as this handle sees the table."""
        names = list(columns) if columns is not None else self.schema.names
        wanted = list(names) if groups is None or "group_id" in names else [*names, "group_id"]
        parts = [
            pq.read_table(path, columns=wanted, filesystem=self._fs, partitioning=None)
            for path in self.files(groups)
        ]
        if not parts:
            return self.schema.empty_table().select(names)
        table = pa.concat_tables(parts, promote_options="default")
        if groups is not None:
            table = table.filter(pc.is_in(table["group_id"], value_set=pa.array(groups, pa.string())))
        return table.select(names)


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """What Delta keeps of a file: rows, and the range of group ids, by which files are pruned."""
    statistics: dict[str, Any] = {
        "numRecords": rows.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    for name in ("group_id", "log_offset"):
        if name in rows.column_names:
            low_high = pc.min_max(rows[name]).as_py()
            if low_high["min"] is not None:
                statistics["minValues"][name] = low_high["min"]
                statistics["maxValues"][name] = low_high["max"]
    return statistics


class Store:
    """The tables under one root path."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def table(self, name: str, schema: pa.Schema) -> Table:
        """A handle of the table `name` (such as `events/calls`), created where it does not exist."""
        return Table(f"{self.root}/{name}", schema)

    def existing(self, name: str) -> Table | None:
        """A handle of a table that exists, with its own schema; None where there is none."""
        try:
            delta = DeltaTable(f"{self.root}/{name}")
        except TableNotFoundError:
            return None
        schema = pa.schema(delta.schema().to_arrow())
        return Table(f"{self.root}/{name}", schema, delta)

    def read_file(self, name: str) -> bytes | None:
        """The bytes of a small file beside the tables; None where there is none."""
        fs, path = fsspec.core.url_to_fs(f"{self.root}/{name}")
        return bytes(fs.cat_file(path)) if fs.exists(path) else None

    def write_file(self, name: str, data: bytes) -> None:
        """Write a small file beside the tables: whole or not at all, whatever is killed."""
        fs, path = fsspec.core.url_to_fs(f"{self.root}/{name}")
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if "file" not in fs.protocol:
            fs.pipe_file(path, data)  # an object store puts an object at once
            return
        part = f"{path}.part-{os.getpid()}"
        fs.pipe_file(part, data)
        os.replace(part, path)

    def names(self, folder: str) -> list[str]:
        """The names of the tables under a folder (such as `events`, or `sets/default`)."""
        fs, path = fsspec.core.url_to_fs(f"{self.root}/{folder}")
        if not fs.isdir(path):
            return []
        found = [p.rstrip("/").rsplit("/", 1)[-1] for p in fs.ls(path, detail=False)]
        return sorted(n for n in found if fs.isdir(f"{path}/{n}/_delta_log"))

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder (such as `sets`)."""
        fs, path = fsspec.core.url_to_fs(f"{self.root}/{folder}")
        if not fs.isdir(path):
            return []
        return sorted(p.rstrip("/").rsplit("/", 1)[-1] for p in fs.ls(path, detail=False) if fs.isdir(p))
