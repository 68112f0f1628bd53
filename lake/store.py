"""The lake: Delta tables of Parquet on any fsspec path.

    store = Store("/runs/demo/lake")            or s3://bucket/lake
    table = store.table("events/calls", schema)
    table.append(rows, offsets={"log/calls/0": 1200})   rows and offsets in one commit
    table.read(groups=["g-000012"])                     files and row groups are pruned by group ids

A Delta app transaction carries each log offset inside the commit that holds the rows, so a crash
between write and commit repeats nothing and loses nothing.  Files are written and fsynced before
they are registered (delta-rs itself does not fsync local files).

An object store's address and keys come from the environment, as its own tools read them: for S3
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true for plain http.
"""

from __future__ import annotations

import os

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from lake.store_errors import (
    Fenced,
    FileGone,
    SchemaDiffers,
    StoreError,
    StoreFull,
    StoreUnavailable,
    telling,
)
from lake.table import Table, filesystem, is_local, open_delta

__all__ = [
    "Fenced", "FileGone", "SchemaDiffers", "Store", "StoreError", "StoreFull", "StoreUnavailable", "Table",
]  # fmt: skip


class Store:
    """The tables under one root path."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def table(self, name: str, schema: pa.Schema) -> Table:
        """A handle of the table `name` (such as `events/calls`), created where it does not exist.

        A table that lacks a declared column gains it.  Raises SchemaDiffers for a changed type.
        """
        return Table(f"{self.root}/{name}", schema)

    def existing(self, name: str) -> Table | None:
        """A handle of a table that exists, with its own schema; None where there is none."""
        uri = f"{self.root}/{name}"
        local = is_local(filesystem(uri)[0])
        try:
            with telling(uri, local=local):
                delta = open_delta(uri, local=local)
        except StoreError as error:
            if isinstance(error.__cause__, TableNotFoundError):
                return None
            raise
        return Table(uri, pa.schema(delta.schema().to_arrow()), delta)

    def read_file(self, name: str) -> bytes | None:
        """The bytes of a small file beside the tables; None where there is none."""
        fs, path = filesystem(f"{self.root}/{name}")
        return bytes(fs.cat_file(path)) if fs.exists(path) else None

    def write_file(self, name: str, data: bytes) -> None:
        """Write a small file beside the tables: whole or not at all, whatever is killed."""
        fs, path = filesystem(f"{self.root}/{name}")
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if not is_local(fs):
            fs.pipe_file(path, data)  # an object store puts an object at once
            return
        part = f"{path}.part-{os.getpid()}"
        fs.pipe_file(part, data)
        os.replace(part, path)

    def names(self, folder: str) -> list[str]:
        """The names of the tables under a folder (such as `events`, or `sets/default`)."""
        fs, path = filesystem(f"{self.root}/{folder}")
        if not fs.isdir(path):
            return []
        found = [p.rstrip("/").rsplit("/", 1)[-1] for p in fs.ls(path, detail=False)]
        return sorted(n for n in found if fs.isdir(f"{path}/{n}/_delta_log"))

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder (such as `sets`)."""
        fs, path = filesystem(f"{self.root}/{folder}")
        if not fs.isdir(path):
            return []
        return sorted(p.rstrip("/").rsplit("/", 1)[-1] for p in fs.ls(path, detail=False) if fs.isdir(p))
