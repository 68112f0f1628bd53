"""Rows of JSON lines, plain or compressed: a line at a time, whatever it is long.

    file -> (decompressed) blocks -> lines -> ids parsed in place, the rest by msgspec -> RawCall | Refused

The text of `input_ids` and `output_ids` is nearly all of a line.  It is cut out by its brackets and parsed
into a buffer (`IdParser`); a number of ours stands in its place when msgspec reads the line.  A line of which
anything is wrong is read again as it stands, so that the reason names what is wrong with it.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from ingest.importing.kernels import IdParser, NotIds
from ingest.importing.rows import (
    Ids,
    Place,
    RawCall,
    Refused,
    RowRefused,
    Score,
    checked_call,
    checked_score,
    named,
)

BUFFER_BYTES = 4 << 20
LINE_BYTES_MAX = 512 << 20
VALUE_BYTES_MAX = 16 << 10
"""Of a refused row that is kept with the reason; the file has the rest."""
SPACES_MAX = 1000
"""An empty line has fewer."""
PARSERS_BYTES = 128 << 20
"""Of the parsers of executions: about 30 at contexts of 100k tokens."""
MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
IDS = ("input_ids", "output_ids")
NOT_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError)

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


class Line(NamedTuple):
    """A line where it stands in the reader's buffer, without its end of line."""

    buffer: bytearray
    start: int
    end: int

    def view(self) -> memoryview:
        return memoryview(self.buffer)[self.start : self.end]

    def head(self, size: int) -> bytes:
        return bytes(self.buffer[self.start : min(self.end, self.start + size)])


def lines(path: str, watch: Watch) -> Iterator[tuple[int, Line | str]]:
    """(number, line) of a file, gone with the next one; text instead where a line cannot be given: why.

    Plain, gzip or zstd, by its first bytes.  What is behind damage in a compressed file is lost; that is the
    last line, as text.  Memory: twice the longest line, BUFFER_BYTES at least; nothing is copied but what
    is left of a full buffer.
    """
    number, skipped = 1, 0
    buffer, start, end = bytearray(BUFFER_BYTES), 0, 0
    with pa.OSFile(path, "rb") as source:
        stream = _stream(source)
        while True:
            if end == len(buffer):
                if end - start > LINE_BYTES_MAX:
                    skipped, start = skipped + end - start, end  # only its length is told
                old, rest = buffer, end - start
                buffer = bytearray(2 * len(old)) if 2 * rest > len(old) else old
                buffer[:rest] = memoryview(old)[start:end]
                start, end = 0, rest
            try:
                read = stream.readinto(memoryview(buffer)[end:])
            except OSError as error:
                yield number, f"the file is damaged here: {error}; what comes after it is not read"
                return
            watch(source.tell())
            fresh, end = end, end + read
            while (stop := buffer.find(b"\n", fresh, end)) >= 0:
                yield number, _whole(Line(buffer, start, stop), skipped)
                number, skipped, start = number + 1, 0, stop + 1
                fresh = start
            if not read:
                break
    if end > start or skipped:
        yield number, _whole(Line(buffer, start, end), skipped)


def _whole(line: Line, skipped: int) -> Line | str:
    size = skipped + line.end - line.start
    return line if size <= LINE_BYTES_MAX else f"a line of {size} bytes, at most {LINE_BYTES_MAX}"


def _stream(source: Any) -> Any:
    head = source.read(4)
    source.seek(0)
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    return source if kind is None else pa.CompressedInputStream(source, kind)


# --------------------------------------------------------------------------------------- calls
class _Parsers:
    """A parser for each of the executions whose rows came last: a history is compared with its own."""

    def __init__(self) -> None:
        self._by_execution: OrderedDict[str, IdParser] = OrderedDict()
        self._held = 0

    def parse(self, execution: str, text: memoryview) -> Ids:
        """Raises NotIds."""
        parser = self._by_execution.get(execution)
        if parser is None:
            parser = self._by_execution[execution] = IdParser()
            self._held += parser.nbytes
        self._by_execution.move_to_end(execution)
        before = parser.nbytes
        try:
            return parser.parse(text)
        finally:
            self._held += parser.nbytes - before
            while self._held > PARSERS_BYTES and len(self._by_execution) > 1:
                self._held -= self._by_execution.popitem(last=False)[1].nbytes


class _LineReader:
    """Lines to calls; keeps the buffers of the ids."""

    def __init__(self) -> None:
        self._inputs, self._outputs = _Parsers(), IdParser()
        self._decoder = msgspec.json.Decoder(_Line)
        words = {name: b'"%s"' % name.encode() for name in IDS}
        self._keys = {n: (word, re.compile(word + rb"\s*:\s*(?=\[)")) for n, word in words.items()}
        self._marks = {name: str(secrets.randbits(62)).encode() for name in IDS}

    def call(self, place: Place, line: Line) -> RawCall:
        """Raises RowRefused."""
        try:
            return self._quick(place, line)
        except (*NOT_JSON, NotIds, RowRefused):
            return self._slow(place, line)

    def _quick(self, place: Place, line: Line) -> RawCall:
        """Read a line whose lists of ids were cut out."""
        cuts, (buffer, start, stop), end = [], line, line.start
        for name, (word, pattern) in self._keys.items():
            found = buffer.find(word, end, stop)  # behind the list before it, where it nearly always is
            if found < 0:
                found = buffer.find(word, start, stop)
            key = pattern.match(buffer, found, stop) if found >= 0 else None
            end = buffer.find(b"]", key.end(), stop) if key else -1
            if key is None or end < 0:
                raise RowRefused(f"{name} is missing")
            cuts.append((key.end(), end + 1, name))
        (a, b, first), (c, d, second) = sorted(cuts)
        view = memoryview(buffer)
        rest = b"".join([view[start:a], self._marks[first], view[b:c], self._marks[second], view[d:stop]])
        read = self._decoder.decode(rest)
        if any(bytes(getattr(read, name)) != self._marks[name] for name in IDS):
            raise RowRefused("a key stands in the line twice")
        texts = {first: view[a:b], second: view[c:d]}
        return self._checked(place, read, texts)

    def _slow(self, place: Place, line: Line) -> RawCall:
        """Read a line as it stands."""
        try:
            read = self._decoder.decode(line.view())
        except NOT_JSON as error:
            raise RowRefused(f"no JSON object of a call: {error}") from error
        texts = {name: memoryview(getattr(read, name)) for name in IDS}
        return self._checked(place, read, texts)

    def _checked(self, place: Place, read: _Line, texts: dict[str, memoryview]) -> RawCall:
        fields = {name: getattr(read, name) for name in _Line.__struct_fields__}
        execution = named("execution_id", read.execution_id)
        inputs = self._ids("input_ids", texts, lambda text: self._inputs.parse(execution, text))
        outputs = self._ids("output_ids", texts, self._outputs.parse)
        return checked_call(place, fields, inputs, outputs, read.output_logprobs)

    @staticmethod
    def _ids(name: str, texts: dict[str, memoryview], parse: Callable[[memoryview], Ids]) -> Ids:
        text = texts[name]
        if len(text) == 0 or bytes(text[:4]) == b"null":
            raise RowRefused(f"{name} is missing")
        try:
            return parse(text)
        except NotIds as error:
            raise RowRefused(f"{name}: {error}") from error


def line_calls(path: str, watch: Watch) -> Iterator[RawCall | Refused]:
    """The calls of a file of JSON lines; empty lines are nothing."""
    reader = _LineReader()
    return _rows(path, watch, reader.call)


def line_scores(path: str, watch: Watch) -> Iterator[Score | Refused]:
    """The scores of a file of JSON lines."""
    decoder = msgspec.json.Decoder(_ScoreLine)

    def score(place: Place, line: Line) -> Score:
        try:
            read = decoder.decode(line.view())
        except NOT_JSON as error:
            raise RowRefused(f"no JSON object of a score: {error}") from error
        return checked_score(place, msgspec.structs.asdict(read))

    return _rows(path, watch, score)


def _rows(path: str, watch: Watch, read: Callable[[Place, Line], Any]) -> Iterator[Any]:
    for number, line in lines(path, watch):
        place = Place(path, number)
        if isinstance(line, str):
            yield Refused(place, line)
        elif not _is_empty(line):
            try:
                yield read(place, line)
            except RowRefused as error:
                yield Refused(place, str(error), line.head(VALUE_BYTES_MAX))


def _is_empty(line: Line) -> bool:
    return line.end - line.start < SPACES_MAX and not line.head(SPACES_MAX).strip()
