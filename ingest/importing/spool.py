"""Delta-coded calls on their way from the files to the lake: in one file, each with the place of the one
before it of its execution.

    last = spool.add(event, last)            of each execution only `last` is kept in memory
    spool.calls(last)                        its calls, in order

Nothing of it outlives the import: it is written anew when that is begun again.
"""

from __future__ import annotations

import os
import struct
import tempfile
from types import TracebackType
from typing import Self

import msgspec

from lake.events import ModelCalled

BUFFER_BYTES = 4 << 20
_HEAD = struct.Struct("<qq")  # place and size of the record before it

Where = tuple[int, int]
"""Place and size of a record; NOWHERE: there is none."""
NOWHERE: Where = (-1, 0)


class SpoolFull(RuntimeError):
    """The temporary folder takes no more: how large the file is, what to do."""


class Spool:
    """A file without a name in `folder` (None: the system's temporary folder, TMPDIR)."""

    def __init__(self, folder: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  `__exit__` closes it
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ModelCalled)
        self._buffer = bytearray()
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def nbytes(self) -> int:
        return self._written + len(self._buffer)

    def add(self, event: ModelCalled, before: Where) -> Where:
        """Keep a call; where it is.  Raises SpoolFull."""
        start = self.nbytes
        self._buffer += _HEAD.pack(*before)
        self._encoder.encode_into(event, self._buffer, len(self._buffer))
        size = self.nbytes - start
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()
        return start, size

    def _flush(self) -> None:
        view = memoryview(self._buffer)
        try:
            while view:
                view = view[os.write(self._file.fileno(), view) :]
        except OSError as error:
            raise SpoolFull(
                f"{tempfile.gettempdir()} takes no more after {self._written} bytes of calls ({error}); "
                "set TMPDIR to a folder with more space and import again"
            ) from error
        finally:
            view.release()
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def calls(self, last: Where) -> list[ModelCalled]:
        """The calls of an execution, from its first to `last`."""
        if self._buffer:
            self._flush()
        found = []
        while last != NOWHERE:
            data = os.pread(self._file.fileno(), last[1], last[0])
            found.append(self._decoder.decode(memoryview(data)[_HEAD.size :]))
            last = _HEAD.unpack_from(data)
        return found[::-1]
