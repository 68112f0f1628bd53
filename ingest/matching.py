"""Delta coding: what a call shares with the earlier calls of its execution.

One matcher for the proxy, which adds call by call, and for imports, which add many: a radix tree over
int32 token buffers (`ingest.matching_kernels`, compiled).  A token stands in memory once however many calls
pass over it.  Exact: every token that is said to be shared was compared.

    matcher = Matcher()
    parent, shared = matcher.longest_prefix(input_ids)
    matcher.insert(call_id, input_ids, output_ids)
    matcher.whole(call_id)                              the ids again
    encode(input_ids, input_offsets, output_ids, output_offsets)      all calls of one execution
    encode_rows(rows)                                   raw calls of many executions, as Arrow has them

Canonical form (design note trajectories.md): `shared` is as large as it can be, and the parent is
the call that owns token `shared - 1`, that is, the first call that put this token on this path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from ingest import matching_kernels as kernels

if TYPE_CHECKING:
    import pyarrow as pa

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]
Place = tuple[int, int]
"""(number of a kept call, a depth of its sequence); ROOT is above all."""
EMPTY: Ids = np.zeros(0, np.int32)
ROOT: Place = (-1, 0)
FIRST_TOKENS, FIRST_CALLS = 1024, 8
"""Room of an empty matcher: 8 KB, since a proxy has one an open execution."""
CALL_BYTES = 200
"""Of a kept call beside its tokens, about: its row, two edges, their places in the table, its id."""


class MatchingError(ValueError):
    """A call that cannot be kept: which, and why."""


def _ids(values: npt.ArrayLike) -> Ids:
    """As a kernel takes them: in one piece, aligned; a view wherever that is so already."""
    if type(values) is np.ndarray and values.dtype == np.int32:
        flags = values.flags
        if flags.c_contiguous and flags.aligned:
            return values
    return np.require(values, np.int32, ["C", "A"])


def relation_of(parent: int | None, shared: int, parent_len: int) -> tuple[str, str]:
    """(relation, difference) of a call that shares `shared` of the `parent_len` tokens of its parent.

    By tokens alone, where no messages are known: a call extends the whole of its parent, leaves it at a
    token, or has nothing in common with any.
    """
    if parent is None:
        return "restarts", ""
    return (
        ("extends", "")
        if shared == parent_len
        else ("branches", f"token {shared} differs from call {parent}")
    )


class Coded(Protocol):
    """A delta-coded call, such as `lake.events.ModelCalled`; ids are little-endian int32."""

    @property
    def call_id(self) -> int: ...
    @property
    def parent_call_id(self) -> int | None: ...
    @property
    def shared_len(self) -> int: ...
    @property
    def context_ids(self) -> bytes: ...
    @property
    def output_ids(self) -> bytes: ...


class _Tree:
    """The arrays of the kernels, and their growth: twice the room each time, so that adding is linear."""

    def __init__(self, tokens: int = FIRST_TOKENS, calls: int = FIRST_CALLS) -> None:
        """With room for so many."""
        edges = 1 << (kernels.EDGES_A_CALL * (calls + 1)).bit_length()  # with the root: 4 at least
        self.tokens = np.empty(max(1, tokens), np.int32)
        self.calls = np.empty((max(1, calls), 5), np.int64)
        self.edges = np.empty((edges, 8), np.int64)
        self.table = np.zeros((2 * edges, 2), np.int64)  # a power of two
        self.counts = np.zeros(3, np.int64)
        self._edges_of_ids, self._edges_of_output = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._place = np.zeros((1, 3), np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget every call; the room stays."""
        self.table[:] = 0
        self.edges[0] = 0
        self.edges[0, kernels.OWNER] = -1
        self.counts[:] = (0, 0, 1)

    @property
    def arrays(self) -> tuple[Ids, Numbers, Numbers, Numbers, Numbers]:
        return self.tokens, self.calls, self.edges, self.table, self.counts

    @property
    def size(self) -> int:
        """Calls that are kept."""
        return int(self.counts[kernels.CALLS])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def insert(self, ids: Ids, output: Ids, begin: int, place: Place) -> None:
        """Keep one call, whose ids from depth `begin` on are given, and which passes `place`."""
        self._edges_of_ids[1], self._edges_of_output[1] = len(ids), len(output)
        self._place[0] = (begin, *place)
        self.insert_many((ids, self._edges_of_ids, output, self._edges_of_output), self._place)

    def insert_many(self, columns: tuple[Ids, Numbers, Ids, Numbers], places: Numbers) -> None:
        """Keep calls in order, as `kernels.insert` does, with the room that they need."""
        done, lacking = 0, 0
        while True:
            done, lacking = kernels.insert(*self.arrays, *columns, places, done)
            if lacking < 0:
                return
            self._grow(lacking)

    def _grow(self, lacking: int) -> None:
        """Make room for one more call of so many tokens."""
        tokens, calls, edges = (int(n) for n in self.counts)
        if tokens + lacking > len(self.tokens):
            self.tokens = _longer(self.tokens, tokens, max(tokens + lacking, 3 * tokens // 2))
        if calls == len(self.calls):
            self.calls = _longer(self.calls, calls, 2 * calls)
        if edges + kernels.EDGES_A_CALL > len(self.edges):
            self.edges = _longer(self.edges, edges, 2 * len(self.edges))
        if 2 * (edges + kernels.EDGES_A_CALL) > len(self.table):
            old, self.table = self.table, np.zeros((2 * len(self.table), 2), np.int64)
            kernels.rehash(old, self.table)


def _joined(parts: Sequence[bytes]) -> tuple[Ids, Numbers]:
    """Values and offsets of ids that lie in many places."""
    lengths = np.fromiter((len(part) // 4 for part in parts), np.int64, len(parts))
    return np.frombuffer(b"".join(parts), "<i4"), np.concatenate([[0], np.cumsum(lengths)])


def _longer(array: Any, used: int, length: int) -> Any:
    longer = np.empty((length, *array.shape[1:]), array.dtype)
    longer[:used] = array[:used]
    return longer


class Matcher:
    """The calls of one execution; nothing is forgotten."""

    def __init__(self) -> None:
        self._tree = _Tree()
        self._numbers: dict[int, int] = {}  # call id -> place among the kept calls
        self._call_ids: list[int] = []

    def __len__(self) -> int:
        """Calls that are kept."""
        return len(self._call_ids)

    @property
    def nbytes(self) -> int:
        """Of memory, about: what the calls added, and CALL_BYTES each at least."""
        return self._tree.nbytes + CALL_BYTES * len(self._call_ids)

    def longest_prefix(self, ids: Ids, known: int | None = None) -> tuple[int | None, int]:
        """(owner of the last shared token, number of shared tokens); (None, 0) where nothing is shared.

        `known`: a kept call whose whole sequence ids begin with, by construction: it is not compared
        again, so that the time is linear in the tokens that are new.
        """
        owner, shared = kernels.longest_prefix(*self._tree.arrays, _ids(ids), *self._end(known))
        return (self._call_ids[owner], shared) if shared else (None, 0)

    def insert(
        self, call_id: int, input_ids: Ids, output_ids: Ids = EMPTY, known: int | None = None
    ) -> tuple[int | None, int]:
        """Keep a call; returns longest_prefix(input_ids), the form in which it is recorded.

        An output that nobody can extend (it never reached the harness) is not given.
        Raises MatchingError where the call is kept already.
        """
        self._check_new(call_id)
        self._tree.insert(_ids(input_ids), _ids(output_ids), 0, self._end(known))
        return self._added(call_id)

    @classmethod
    def restored(cls, calls: Sequence[Coded]) -> Self:
        """A matcher of calls as they were recorded, all of an execution in their order: it goes on with them.

        Raises MatchingError where a parent is not there or is too short, or a call stands twice.
        """
        made = cls()
        lengths: list[int] = []
        places = np.empty((len(calls), 3), np.int64)
        for number, call in enumerate(calls):
            made._check_new(call.call_id)
            parent = -1 if call.parent_call_id is None else made._numbers.get(call.parent_call_id, -1)
            there = lengths[parent] if parent >= 0 else 0
            if call.shared_len > there:
                raise MatchingError(
                    f"call {call.call_id} shares {call.shared_len} tokens with call {call.parent_call_id}, "
                    f"which has {there} here; give the calls of an execution in their order, every one"
                )
            lengths.append(call.shared_len + (len(call.context_ids) + len(call.output_ids)) // 4)
            places[number] = (call.shared_len, parent, call.shared_len)
            made._numbers[call.call_id] = number
            made._call_ids.append(call.call_id)
        contexts, outputs = _joined([c.context_ids for c in calls]), _joined([c.output_ids for c in calls])
        made._tree = _Tree(len(contexts[0]) + len(outputs[0]), len(calls))
        made._tree.insert_many((*contexts, *outputs), places)
        return made

    def _end(self, known: int | None) -> Place:
        """The place where a kept call ends."""
        return ROOT if known is None else (self._numbers[known], self.length(known))

    def _check_new(self, call_id: int) -> None:
        if call_id in self._numbers:
            raise MatchingError(f"call {call_id} is kept already")

    def _added(self, call_id: int) -> tuple[int | None, int]:
        number = len(self._call_ids)
        self._numbers[call_id] = number
        self._call_ids.append(call_id)
        row = self._tree.calls[number]
        shared = int(row[kernels.SHARED])
        return (self._call_ids[row[kernels.PARENT]], shared) if shared else (None, 0)

    def length(self, call_id: int) -> int:
        """Tokens of the call's whole kept sequence."""
        row = self._tree.calls[self._numbers[call_id]]
        return int(row[kernels.SHARED] + row[kernels.LENGTH])

    def whole(self, call_id: int) -> Ids:
        """The call's whole kept sequence, put together again from what each call added."""
        out = np.empty(self.length(call_id), np.int32)
        kernels.whole(*self._tree.arrays, self._numbers[call_id], out)
        return out


# ------------------------------------------------------------------------------------ many at once
def encode(
    input_ids: Ids, input_offsets: Numbers, output_ids: Ids, output_offsets: Numbers
) -> tuple[Numbers, Numbers]:
    """(parents, shared), both (n,) int64, of one execution's n calls in order; parent -1: none.

    Call c has input_ids[input_offsets[c] : input_offsets[c + 1]], and its output likewise; offsets (n + 1,).
    """
    return _encode(_Tree(), input_ids, input_offsets, output_ids, output_offsets)


def _encode(
    tree: _Tree, input_ids: Ids, input_offsets: Numbers, output_ids: Ids, output_offsets: Numbers
) -> tuple[Numbers, Numbers]:
    if len(input_offsets) != len(output_offsets):
        raise MatchingError(
            f"{len(input_offsets) - 1} inputs and {len(output_offsets) - 1} outputs: a call has one of each"
        )
    columns = (_ids(input_ids), _offsets(input_offsets), _ids(output_ids), _offsets(output_offsets))
    tree.insert_many(columns, _places(len(input_offsets) - 1))
    calls = tree.calls[: tree.size]
    return calls[:, kernels.PARENT].copy(), calls[:, kernels.SHARED].copy()


def _offsets(values: npt.ArrayLike) -> Numbers:
    return np.require(values, np.int64, ["C", "A"])


def _places(calls: int) -> Numbers:
    """Of calls that are given whole, and of which nothing is known."""
    places = np.zeros((calls, 3), np.int64)
    places[:, kernels.KNOWN] = ROOT[0]
    return places


def encode_rows(rows: pa.Table) -> tuple[Numbers, Numbers]:
    """(parents, shared), both (n,) int64, of raw calls: execution_id, input_ids and output_ids (list<int32>).

    The calls of an execution are in order; those of others may stand between them.  A parent is the number
    of a call among those of its execution, from 0; -1: none.
    """
    parents, shared = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
    tree = _Tree()
    for places, part in _executions(rows):
        tree.clear()
        columns = (_flat(part[name]) for name in ("input_ids", "output_ids"))
        (inputs, input_offsets), (outputs, output_offsets) = columns
        parents[places], shared[places] = _encode(tree, inputs, input_offsets, outputs, output_offsets)
    return parents, shared


def _executions(rows: pa.Table) -> Iterator[tuple[Numbers, pa.Table]]:
    """Each execution: the places of its rows, and these; views where they stand together."""
    import pyarrow as pa  # 60 MB that a proxy does not need

    names = rows["execution_id"].dictionary_encode().unify_dictionaries()
    codes = np.concatenate([np.asarray(c.indices, np.int64) for c in names.chunks] or [np.zeros(0, np.int64)])
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1))
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        places = order[start:stop]
        together = places[-1] - places[0] == len(places) - 1
        yield places, rows.slice(places[0], len(places)) if together else rows.take(pa.array(places))


def _flat(column: pa.ChunkedArray) -> tuple[Ids, Numbers]:
    """Values and offsets of a column of lists; of one chunk without copying its values."""
    lists = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    offsets = np.asarray(lists.offsets, np.int64)
    return np.asarray(lists.values)[offsets[0] : offsets[-1]], offsets - offsets[0]
