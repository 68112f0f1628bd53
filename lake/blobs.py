"""What is too large for a record: bytes kept outside the log, named by their sha256.

    RUN/blobs/3f/3f2a...   one file a content       (or s3://bucket/blobs/3f/3f2a...: any fsspec path)

Guarantees: `put` returns after the bytes are durable under their name, and writes the same bytes once;
`get` gives exactly the bytes that were put, or says what is wrong.  Bytes are put before the record that
names them is appended: a crash between the two leaves bytes that nobody names, which hurt nothing.

Errors:

    EventError
    +-- BlobMissing     the store answers, and does not have it: the event is lost
    +-- BlobDamaged     the store holds other bytes under this name
    LogUnavailable      the store does not answer, or is full; trying again may help
"""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress

import fsspec

from lake.durable import sync
from lake.events import EventError
from lake.log import LogUnavailable


class BlobMissing(EventError):
    """The store answers, and does not have these bytes."""


class BlobDamaged(EventError):
    """The store holds other bytes than the name says."""


class Blobs:
    """The bytes under one root; safe to use from several threads and processes at once."""

    def __init__(self, root: str) -> None:
        """Nothing is asked of an object store yet.  A folder is made where it is missing: from then on
        one that is gone is a store that does not answer, not a store that lost its bytes.

        Raises LogUnavailable where the folder cannot be made.
        """
        self.root = root.rstrip("/")
        # listings that others of this process made must not say that a new file is not there
        self._fs, self._path = fsspec.core.url_to_fs(self.root, use_listings_cache=False)
        self._local = self._fs.protocol in ("file", ("file", "local"))
        if self._local:
            try:
                os.makedirs(self._path, exist_ok=True)
                sync(os.path.dirname(self._path))
            except OSError as error:
                raise self._unavailable("cannot be made", error) from error

    def _unavailable(self, what: str, error: object) -> LogUnavailable:
        return LogUnavailable(
            f"blobs {self.root}: {what}: {error or type(error).__name__}; see that the store is there, has "
            "room and lets this process in, then try again"
        )

    def _file(self, sha256: str) -> str:
        return f"{self._path}/{sha256[:2]}/{sha256}"

    def put(self, data: bytes) -> str:
        """Keep these bytes; their sha256 (64 hex digits).  Raises LogUnavailable."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._file(sha256)
        try:
            if self._local:
                self._write(path, sha256, data)
            elif not self._holds(path, sha256, len(data)):
                self._fs.pipe_file(path, data)  # an object store puts an object at once
        except Exception as error:  # each object store has errors of its own
            raise self._unavailable(f"{len(data)} bytes could not be written", error) from error
        return sha256

    def _size(self, path: str) -> int | None:
        """The size of a file in bytes; None where there is none."""
        try:
            return int(self._fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def _holds(self, path: str, sha256: str, size: int) -> bool:
        """Whether the file is there and sound: a damaged one is mended by putting its bytes again."""
        if self._size(path) != size:
            return False
        with self._fs.open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256

    def _write(self, path: str, sha256: str, data: bytes) -> None:
        """Write a file whole or not at all; on the disk when this returns, whoever wrote it."""
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            with suppress(FileExistsError):  # another process was faster
                os.mkdir(folder)
            sync(self._path)
        if not self._holds(path, sha256, len(data)):
            part = f"{folder}/part-{uuid.uuid4().hex}"
            try:
                with open(part, "wb", buffering=0) as sink:
                    view = memoryview(data)
                    while view:
                        view = view[sink.write(view) :]
                    os.fsync(sink.fileno())
                os.replace(part, path)
            finally:
                if os.path.exists(part):
                    os.unlink(part)
        sync(folder)  # also where another process renamed it a moment ago

    def get(self, sha256: str, size: int) -> bytes:
        """The `size` bytes with this sha256.  Raises BlobMissing, BlobDamaged, LogUnavailable."""
        path = self._file(sha256)
        try:
            found = self._size(path)
            data: bytes | None = self._fs.cat_file(path) if found == size else None
        except FileNotFoundError:
            found = data = None
        except Exception as error:  # each object store has errors of its own
            raise self._unavailable(f"{sha256} could not be read", error) from error
        if found is None:
            self._check_reachable(sha256)
            raise BlobMissing(
                f"blob {sha256} of {size} bytes is not in {self.root}; bring it back from a copy"
            )
        if data is None or len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            raise BlobDamaged(
                f"blob {sha256} in {self.root} is damaged: {found} bytes of {size}, or another sha256; "
                "bring it back from a copy"
            )
        return data

    def _check_reachable(self, sha256: str) -> None:
        """Raise LogUnavailable where it is the whole store that is missing, not one file of it."""
        whole = self._path if self._local else self._path.split("/", 1)[0]  # the folder, or the bucket
        try:
            there = not whole or self._fs.exists(whole)
        except Exception as error:  # each object store has errors of its own
            raise self._unavailable(f"{sha256} could not be read", error) from error
        if not there:
            raise self._unavailable(f"{sha256} could not be read", f"{whole} is not there")
