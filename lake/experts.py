"""Routed experts: which experts of a mixture each token went to, kept beside the log and the lake.

    engine's answer -> pack -> blob -> `experts` of model.called, "sha256:bytes" -> calls.experts in SQL

A piece is an Arrow file, its buffers compressed (zstd): one row a token, a list a layer of the ids that its
router chose, in the engine's order, uint8 up to 256 experts and uint16 beyond; the schema's metadata have
`start` and `number`.  48 layers with 8 of 128 experts take 337 bytes a token, in the engine's answer 2,048.

Row t of a sequence is what the routers did with token t when the policy read it.  The last token of a call
was sampled and never read, so a call of n tokens has rows for n - 1; who goes on after it reads that token
first, and brings its row.

What a call's history already has is not kept again: its piece begins at the first token that no call
before it on its path has a row of.  So every token of a tree has its row once (the last ones of a call once a
call that goes on after it), and a path is put together piece by piece (`along`), each token's row from the
first call that has it: for a sampled token, from the policy version that went on sampling after it.

From SQL to arrays, for all calls of an execution:

    run, lake = Run(Path("runs/moe")), open_lake("runs/moe")
    blobs = Blobs(run.blobs(run.config()))
    calls = to_events("calls", lake.arrow("event_calls").filter(pc.field("execution_id") == name))
    path = path_to(calls, call_id)
    rows = along([(until, fetch(blobs, c.experts) if c.experts else None) for until, c in path])

Nothing ever removes blobs: neither optimize nor vacuum of a lake, nor a log's retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.events import EventError
from lake.wire import BlobStore

Rows = npt.NDArray[np.uint8 | np.uint16]

COLUMN = "experts"
NUMBER_MAX = 1 << 16


class Piece(NamedTuple):
    """The rows of tokens [start, start + len(rows)) of a call's whole sequence.

    `rows`: uint8 or uint16 (tokens, layers, top_k), each below `number`, the experts that a layer has.
    """

    start: int
    rows: Rows
    number: int

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


class ExpertsMissing(EventError):
    """A token of a path has no row: its engine gave none, and no later call read it again."""


# ------------------------------------------------------------------------------------ one piece
def pack(start: int, rows: npt.NDArray[np.integer], number: int) -> bytes:
    """The piece of these rows (any integers (tokens, layers, top_k)) as an Arrow file; equal, equal bytes.

    Raises EventError for another shape, or ids outside [0, number).
    """
    if rows.ndim != 3 or not rows.size or start < 0 or not 0 < number <= NUMBER_MAX:
        raise EventError(
            f"experts of shape {rows.shape} from token {start}, of {number}; (tokens, layers, top_k), none "
            f"of them 0, and 1 to {NUMBER_MAX} experts are needed"
        )
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= number:
        raise EventError(f"experts run from {low} to {high}; 0 to {number - 1} is possible")
    _, layers, top_k = rows.shape
    flat = pa.array(rows.astype(np.uint8 if number <= 256 else np.uint16).reshape(-1))
    by_layer = pa.FixedSizeListArray.from_arrays(flat, top_k)
    by_token = pa.FixedSizeListArray.from_arrays(by_layer, layers)
    schema = pa.schema([(COLUMN, by_token.type)], {"start": str(start), "number": str(number)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_batch(pa.record_batch([by_token], schema=schema))
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(data: bytes) -> Piece:
    """The piece of an Arrow file.  Raises EventError where it is none."""
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as file:
            table = file.read_all()
        said = {k.decode(): int(v) for k, v in (table.schema.metadata or {}).items()}
        kind = table.schema.field(COLUMN).type
        layers, top_k = kind.list_size, kind.value_type.list_size
        flat = table[COLUMN].combine_chunks().flatten().flatten().to_numpy()
        return Piece(said["start"], flat.reshape(table.num_rows, layers, top_k), said["number"])
    except (pa.ArrowException, ValueError, KeyError, AttributeError) as error:
        raise EventError(f"{len(data)} bytes are no routed experts: {error}") from error


def keep(blobs: BlobStore, start: int, rows: npt.NDArray[np.integer], number: int) -> str:
    """Put a piece; the reference that goes into its call's event.  Raises EventError, LogUnavailable."""
    data = pack(start, rows, number)
    return f"{blobs.put(data)}:{len(data)}"


def fetch(blobs: BlobStore, reference: str) -> Piece:
    """The piece of a reference, as it stands in `calls.experts`.

    Raises EventError for no reference, bytes that are missing or damaged or no piece; LogUnavailable.
    """
    return unpack(read(blobs, reference))


def read(blobs: BlobStore, reference: str) -> bytes:
    """The bytes of a reference."""
    sha256, colon, size = reference.partition(":")
    if not colon or not size.isdecimal():
        raise EventError(f"{reference[:100]!r} is no reference of routed experts: `sha256:bytes`")
    return blobs.get(sha256, int(size))


# ------------------------------------------------------------------------------------- a path
class Coded(Protocol):
    """A call as far as a path needs it, such as lake.events.ModelCalled."""

    @property
    def call_id(self) -> int: ...
    @property
    def parent_call_id(self) -> int | None: ...
    @property
    def shared_len(self) -> int: ...
    @property
    def n_context(self) -> int: ...
    @property
    def n_output(self) -> int: ...
    @property
    def experts(self) -> str: ...


_Call = TypeVar("_Call", bound=Coded)


def covered(shared: int, reach: int | None) -> int:
    """From which token on a call's piece is wanted: the tokens before it have rows on its path already.

    shared: the tokens of its parent's sequence that it begins with.  reach: where the parent's rows end: its
    piece's end, else what this said of it; None without a parent.
    """
    return 0 if reach is None else min(shared, reach)


def path_to(calls: Iterable[_Call], call_id: int) -> list[tuple[int, _Call]]:
    """The calls whose tokens the sequence of a call is made of, the first first, each with the token that it
    goes to: of an execution's calls.  Raises EventError where one of them is not there.
    """
    by_id = {call.call_id: call for call in calls}
    path: list[tuple[int, _Call]] = []
    at: int | None = call_id
    while at is not None:
        call = by_id.get(at)
        if call is None:
            raise EventError(f"call {at} is not there, and call {call_id} stands on it")
        until = call.shared_len + call.n_context + call.n_output
        path.append((min(until, path[-1][1].shared_len, path[-1][0]) if path else until, call))
        at = call.parent_call_id
    return path[::-1]


def along(path: Sequence[tuple[int, Piece | None]]) -> Rows:
    """The rows of a whole sequence, (tokens - 1, layers, top_k), out of its calls' pieces.

    path: the calls from the first to the one whose sequence it is, each by the token up to which the sequence
    is its own (`path_to`), and its piece, None where there is none.  A token's row is that of the first
    call that has it.

    Raises ExpertsMissing where a token has no row.
    """
    rows, at = (path[-1][0] if path else 0) - 1, 0
    parts: list[Rows] = []
    for until, piece in path:
        if piece is None:
            continue
        if piece.start > at:
            raise ExpertsMissing(f"token {at} has no routed experts, the next piece begins at {piece.start}")
        end = max(at, min(until, piece.end, rows))
        parts.append(piece.rows[at - piece.start : end - piece.start])
        at = end
    if not parts or at < rows:
        raise ExpertsMissing(f"token {at} of {rows + 1} has no routed experts")
    return np.concatenate(parts)
