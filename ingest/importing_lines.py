"""Rows of JSON lines, plain or compressed: a line at a time, whatever it is long.

    file -> (decompressed) blocks -> lines -> ids parsed in place, the rest by msgspec -> RawCall | Refused

The text of `input_ids` and `output_ids` is nearly all of a line.  It is cut out by its brackets and parsed
into a buffer (`IdParser`); a number of ours stands in its place when msgspec reads the line.  A line of which
anything is wrong is read again as it stands, so that the reason names what is wrong with it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from ingest.importing_kernels import IdParser, NotIds
from ingest.importing_rows import (
    Place,
    RawCall,
    Refused,
    RowRefused,
    Score,
    checked_call,
    checked_score,
)

BLOCK_BYTES = 1 << 20
LINE_BYTES_MAX = 512 << 20
VALUE_BYTES_MAX = 16 << 10
"""Of a refused row that is kept with the reason; the file has the rest."""
MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
IDS = ("input_ids", "output_ids")

Watch = Callable[[int], None]
"""watch(bytes): how far a file was read."""


class _Line(msgspec.Struct):
    """A line without its long lists."""

    group_id: Any = None
    execution_id: Any = None
    call_id: Any = None
    input_ids: msgspec.Raw = msgspec.Raw(b"")
    output_ids: msgspec.Raw = msgspec.Raw(b"")
    role: Any = None
    output_logprobs: list[float] | None = None
    version: Any = None
    finish_reason: Any = None


class _ScoreLine(msgspec.Struct):
    execution_id: Any = None
    score: Any = None
    status: Any = None
    group_id: Any = None


def lines(path: str, watch: Watch) -> Iterator[tuple[int, bytes | str]]:
    """(number, line) of a file; text instead of bytes where a line cannot be given: why.

    Plain, gzip or zstd, by its first bytes.  What is behind damage in a compressed file is lost; that is the
    last line, as text.  Memory: a block and a line.
    """
    number, parts, size = 1, list[bytes](), 0
    with pa.OSFile(path, "rb") as source:
        try:
            for block in _blocks(source):
                watch(source.tell())
                first, *rest = block.split(b"\n")
                parts.append(first)
                size += len(first)
                for more in rest:
                    yield number, _joined(parts, size)
                    number, parts, size = number + 1, [more], len(more)
                if size > LINE_BYTES_MAX:
                    parts = []  # its length is known; it is too long already
        except OSError as error:
            yield number, f"the file is damaged here: {error}; what comes after it is not read"
            return
    if size:
        yield number, _joined(parts, size)


def _joined(parts: list[bytes], size: int) -> bytes | str:
    if size > LINE_BYTES_MAX:
        return f"a line of {size} bytes, at most {LINE_BYTES_MAX}"
    return b"".join(parts)


def _blocks(source: Any) -> Iterator[bytes]:
    head = source.read(4)
    source.seek(0)
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    stream = source if kind is None else pa.CompressedInputStream(source, kind)
    while block := stream.read(BLOCK_BYTES):
        yield block


# --------------------------------------------------------------------------------------- calls
class _LineReader:
    """Lines to calls; keeps the buffers of the ids."""

    def __init__(self) -> None:
        self._parsers = {name: IdParser() for name in IDS}
        self._decoder = msgspec.json.Decoder(_Line)
        self._keys = {name: re.compile(rb'"%s"\s*:\s*(?=\[)' % name.encode()) for name in IDS}
        self._marks = {name: str(secrets.randbits(62)).encode() for name in IDS}

    def call(self, place: Place, line: bytes) -> RawCall:
        """Raises RowRefused."""
        try:
            return self._quick(place, line)
        except (msgspec.MsgspecError, NotIds, RowRefused, UnicodeDecodeError):
            return self._slow(place, line)

    def _quick(self, place: Place, line: bytes) -> RawCall:
        """Read a line whose lists of ids were cut out."""
        cuts, view = [], memoryview(line)
        for name, pattern in self._keys.items():
            key = pattern.match(line, line.find(b'"%s"' % name.encode()))
            end = line.find(b"]", key.end()) if key else -1
            if key is None or end < 0:
                raise RowRefused(f"{name} is missing")
            cuts.append((key.end(), end + 1, name))
        (a, b, first), (c, d, second) = sorted(cuts)
        rest = b"".join([view[:a], self._marks[first], view[b:c], self._marks[second], view[d:]])
        read = self._decoder.decode(rest)
        if any(bytes(getattr(read, name)) != self._marks[name] for name in IDS):
            raise RowRefused("a key stands in the line twice")
        texts = {first: view[a:b], second: view[c:d]}
        return self._checked(place, read, texts)

    def _slow(self, place: Place, line: bytes) -> RawCall:
        """Read a line as it stands."""
        try:
            read = self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RowRefused(f"no JSON object of a call: {error}") from error
        texts = {name: memoryview(getattr(read, name)) for name in IDS}
        return self._checked(place, read, texts)

    def _checked(self, place: Place, read: _Line, texts: dict[str, memoryview]) -> RawCall:
        ids = {}
        for name, text in texts.items():
            if len(text) == 0 or bytes(text[:4]) == b"null":
                raise RowRefused(f"{name} is missing")
            try:
                ids[name] = self._parsers[name].parse(text)
            except NotIds as error:
                raise RowRefused(f"{name}: {error}") from error
        fields = {name: getattr(read, name) for name in _Line.__struct_fields__}
        return checked_call(place, fields, ids["input_ids"], ids["output_ids"], read.output_logprobs)


def line_calls(path: str, watch: Watch) -> Iterator[RawCall | Refused]:
    """The calls of a file of JSON lines; empty lines are nothing."""
    reader = _LineReader()
    return _rows(path, watch, reader.call)


def line_scores(path: str, watch: Watch) -> Iterator[Score | Refused]:
    """The scores of a file of JSON lines."""
    decoder = msgspec.json.Decoder(_ScoreLine)

    def score(place: Place, line: bytes) -> Score:
        try:
            read = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RowRefused(f"no JSON object of a score: {error}") from error
        return checked_score(place, msgspec.structs.asdict(read))

    return _rows(path, watch, score)


def _rows(path: str, watch: Watch, read: Callable[[Place, bytes], Any]) -> Iterator[Any]:
    for number, line in lines(path, watch):
        place = Place(path, number)
        if isinstance(line, str):
            yield Refused(place, line)
        elif line and not line.isspace():
            try:
                yield read(place, line)
            except RowRefused as error:
                yield Refused(place, str(error), line[:VALUE_BYTES_MAX])
