"""From a group's derived tables to arrays: rows of token ids, and where their targets are.

    pack(weights, segments, trees) -> Packed        one row an admitted path
    join([a, b])                                    several groups, in the given order
    micro_steps(packed, tokens_max)                 slices, cut between executions only

A row is its path's segments in the order of depth.  Segments that lie side by side in their tree are
one run; runs are copied as blocks, so nothing here loops over tokens, rows or executions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WEIGHTS = ("execution_id", "valid", "advantage", "n_targets", "token_weight")
SEGMENTS = (
    "execution_id",
    "path",
    "depth_start",
    "length",
    "tree_start",
    "logprob_start",
    "sampled",
    "target",
)
INTEGERS = ("path", "depth_start", "length", "tree_start")
TREES = ("execution_id", "token_ids", "logprobs")


class PackingError(ValueError):
    """The derived tables contradict each other, or a path is too long: which, by how much."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """R rows with T tokens and K targets, of E executions; sorted by execution, path and column.

    Only executions with a gradient are here: valid, with targets, advantage not exactly 0.
    `executions_valid` counts those of advantage 0 too: it is the E of the loss.
    """

    execution_ids: tuple[str, ...]  # E
    advantage: Floats  # (E,)
    n_targets: Ints  # (E,) the targets of the execution, all in these rows
    executions_valid: int
    row_execution: npt.NDArray[np.int32]  # (R,) index into execution_ids
    row_path: npt.NDArray[np.int32]  # (R,) the path's number in its execution
    row_start: Ints  # (R + 1,) offsets into ids
    ids: npt.NDArray[np.int32]  # (T,)
    target_row: npt.NDArray[np.int32]  # (K,)
    target_column: npt.NDArray[np.int32]  # (K,) position in the row, at least 1
    mu: npt.NDArray[np.float32]  # (K,) log-probability under the policy that sampled the token

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def rows(self) -> int:
        return len(self.row_execution)

    @property
    def targets(self) -> int:
        return len(self.target_row)

    @property
    def row_lengths(self) -> Ints:
        return np.diff(self.row_start)

    @property
    def target_execution(self) -> npt.NDArray[np.int32]:
        """(K,) index into execution_ids."""
        return self.row_execution[self.target_row]


def _refuse(what: str, ids: Any, bad: npt.NDArray[np.bool_]) -> NoReturn:
    first = int(np.argmax(bad))
    name = ids[first].as_py() if isinstance(ids, pa.Array) else ids[first]
    raise PackingError(
        f"execution {name}: {what} ({int(bad.sum())} like it); derive the group's tables again"
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numbers(table: pa.Table, name: str, dtype: type[Any], null: Any = None) -> npt.NDArray[Any]:
    """A column as numpy; nulls become `null`, or are refused where that is None."""
    array = _column(table, name)
    if array.null_count:
        if null is None:
            _refuse(f"{name} is null", _column(table, "execution_id"), np.asarray(array.is_null()))
        array = pc.fill_null(array, null)
    return np.asarray(array.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)


def _require(table: pa.Table, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise PackingError(
            f"the table of {what} lacks {', '.join(missing)}; it has {', '.join(table.column_names)}"
        )


def _unique(ids: pa.Array, what: str) -> None:
    if pc.count_distinct(ids).as_py() != len(ids):
        raise PackingError(f"the table of {what} has an execution twice; derive the group's tables again")


def _places(wanted: pa.Array, among: pa.Array) -> Ints:
    """The index of each id in `among`, -1 where it is not there."""
    found = pc.index_in(wanted, value_set=among.cast(wanted.type))
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def _executions(weights: pa.Table) -> tuple[pa.Array, Floats, Ints, int]:
    """Ids (sorted), advantages and target counts of those to compute, and E."""
    ids = _column(weights, "execution_id")
    _unique(ids, "weights")
    n = _numbers(weights, "n_targets", np.int64, 0)
    counted = _numbers(weights, "valid", np.bool_, False) & (n > 0)
    advantage = _numbers(weights, "advantage", np.float64, np.nan)
    if (bad := counted & ~np.isfinite(advantage)).any():
        _refuse("valid, with targets, but its advantage is not a finite number", ids, bad)
    token_weight = _numbers(weights, "token_weight", np.float64, np.nan)
    bad = counted & ~(np.abs(token_weight * n - advantage) <= 1e-9 * np.maximum(1.0, np.abs(advantage)))
    if bad.any():
        _refuse("token_weight * n_targets is not its advantage", ids, bad)
    at = np.flatnonzero(counted & (advantage != 0.0))
    at = at[np.asarray(pc.sort_indices(ids.take(pa.array(at))))]
    return ids.take(pa.array(at)), advantage[at], n[at], int(counted.sum())


@dataclass(frozen=True)
class _Lists:
    """One list column: execution e owns values[start[e] : start[e] + length[e]]."""

    values: pa.Array
    start: Ints
    length: Ints


def _lists(trees: pa.Table, name: str, at: Ints) -> _Lists:
    column = _column(trees, name)
    offsets = np.asarray(column.offsets).astype(np.int64)
    return _Lists(column.values, offsets[at], offsets[at + 1] - offsets[at])


def _copy(lists: _Lists, execution: Ints, start: Ints, length: Ints, dtype: type[Any]) -> npt.NDArray[Any]:
    """The blocks [start, start + length) of their executions' lists, end to end."""
    begin = lists.start[execution] + start
    end = begin + length
    if not len(begin):
        return np.empty(0, dtype)
    cut = np.flatnonzero(np.r_[True, begin[1:] != end[:-1]])
    last = np.r_[cut[1:], len(begin)] - 1
    views = pa.LargeListViewArray.from_arrays(
        pa.array(begin[cut]), pa.array(end[last] - begin[cut]), lists.values
    )
    return np.asarray(views.flatten().to_numpy(zero_copy_only=False)).astype(dtype, copy=False)


@dataclass(frozen=True)
class _Segments:
    """The segments of the executions to compute, sorted by execution, path and depth."""

    execution: Ints
    path: Ints
    depth: Ints
    length: Ints
    tree: Ints
    logprob: Ints
    target: npt.NDArray[np.bool_]

    def take(self, at: npt.NDArray[Any]) -> _Segments:
        return _Segments(**{f.name: getattr(self, f.name)[at] for f in fields(self)})


def _segments(segments: pa.Table, ids: pa.Array) -> _Segments:
    names = _column(segments, "execution_id")
    target = _numbers(segments, "target", np.bool_)
    logprob = _numbers(segments, "logprob_start", np.int64, -1)
    if (bad := target & ~(_numbers(segments, "sampled", np.bool_) & (logprob >= 0))).any():
        _refuse("a target segment was not sampled, or has no log-probabilities", names, bad)
    path, depth, length, tree = (_numbers(segments, name, np.int64) for name in INTEGERS)
    s = _Segments(_places(names, ids), path, depth, length, tree, logprob, target)
    s = s.take(s.execution >= 0)
    if (bad := (s.length <= 0) | (s.depth < 0)).any():
        _refuse("a segment has no length, or a depth below 0", ids.take(pa.array(s.execution)), bad)
    return s.take(np.lexsort((s.depth, s.path, s.execution)))


def _inside(lists: _Lists, s: _Segments, start: Ints, what: str, ids: pa.Array) -> None:
    if (bad := (start < 0) | (start + s.length > lists.length[s.execution])).any():
        k = int(np.argmax(bad))
        _refuse(
            f"path {s.path[k]}, a segment at depth {s.depth[k]} needs {what} {start[k]} to "
            f"{start[k] + s.length[k]} of {lists.length[s.execution[k]]}",
            ids.take(pa.array(s.execution)),
            bad,
        )


def _ranges(start: Ints, length: Ints) -> Ints:
    """start[0], start[0] + 1, ... for `length[0]` numbers, then the next."""
    shift = start - np.cumsum(length) + length
    out = np.repeat(shift, length)
    out += np.arange(len(out))
    return out


def pack(weights: pa.Table, segments: pa.Table, trees: pa.Table) -> Packed:
    """One or more groups as arrays, sorted by execution id and path, whatever the order of the tables' rows.

    weights: one row an execution.  segments: one row a segment of an admitted path.  trees: the token
    ids of an execution's whole tree, and all its log-probabilities in the order of calls.
    Raises PackingError where they contradict each other: a gap in a path, a segment outside its tree, a
    target without a log-probability or without a token before it, counts that differ from n_targets.
    """
    _require(weights, WEIGHTS, "weights")
    _require(segments, SEGMENTS, "segments")
    _require(trees, TREES, "trees")
    ids, advantage, n_targets, executions_valid = _executions(weights)
    _unique(_column(trees, "execution_id"), "trees")
    at = _places(ids, _column(trees, "execution_id"))
    if (at < 0).any():
        _refuse("its tree is missing", ids, at < 0)
    tokens, logprobs = _lists(trees, "token_ids", at), _lists(trees, "logprobs", at)
    s = _segments(segments, ids)
    names = ids.take(pa.array(s.execution))
    first = np.r_[True, (s.execution[1:] != s.execution[:-1]) | (s.path[1:] != s.path[:-1])][: len(s.path)]
    row = np.cumsum(first) - 1
    ends = np.cumsum(s.length)
    head = np.flatnonzero(first)
    row_start = np.r_[ends[head] - s.length[head], ends[-1:]] if len(head) else np.zeros(1, np.int64)
    if (bad := s.depth != ends - s.length - row_start[row]).any():
        k = int(np.argmax(bad))
        _refuse(f"path {s.path[k]} has a gap or an overlap at depth {s.depth[k]}", names, bad)
    if (bad := s.target & (s.depth == 0)).any():
        _refuse("the first token of a path is a target; nothing stands before it to predict it", names, bad)
    _inside(tokens, s, s.tree, "tokens", ids)
    t = s.take(s.target)
    _inside(logprobs, t, t.logprob, "log-probabilities", ids)
    counted = np.bincount(t.execution, weights=t.length, minlength=len(ids)).astype(np.int64)
    if (bad := counted != n_targets).any():
        k = int(np.argmax(bad))
        _refuse(f"its segments hold {counted[k]} targets, its weights count {n_targets[k]}", ids, bad)
    mu = _copy(logprobs, t.execution, t.logprob, t.length, np.float32)
    if np.isnan(mu).any():
        _refuse(
            "a target's log-probability is null",
            ids.take(pa.array(np.repeat(t.execution, t.length))),
            np.isnan(mu),
        )
    return Packed(
        execution_ids=tuple(ids.to_pylist()),
        advantage=advantage,
        n_targets=n_targets,
        executions_valid=executions_valid,
        row_execution=s.execution[head].astype(np.int32),
        row_path=s.path[head].astype(np.int32),
        row_start=row_start,
        ids=_copy(tokens, s.execution, s.tree, s.length, np.int32),
        target_row=np.repeat(row[s.target].astype(np.int32), t.length),
        target_column=_ranges(t.depth, t.length).astype(np.int32),
        mu=mu,
    )


def join(packs: Sequence[Packed]) -> Packed:
    """Several packs as one, in the given order; an execution must not come twice."""
    if not packs:
        raise PackingError("nothing to join: give at least one pack")
    ids = tuple(name for p in packs for name in p.execution_ids)
    if len(set(ids)) != len(ids):
        raise PackingError("an execution comes twice in the packs to join")

    def stacked(name: str, shift: Sequence[int] | None = None) -> npt.NDArray[Any]:
        parts = [getattr(p, name) for p in packs]
        if shift is not None:
            parts = [part + part.dtype.type(by) for part, by in zip(parts, shift, strict=True)]
        return np.concatenate(parts)

    executions = np.cumsum([0, *(len(p.execution_ids) for p in packs)]).tolist()
    rows = np.cumsum([0, *(p.rows for p in packs)]).tolist()
    lengths = np.concatenate([p.row_lengths for p in packs])
    return Packed(
        execution_ids=ids,
        advantage=stacked("advantage"),
        n_targets=stacked("n_targets"),
        executions_valid=sum(p.executions_valid for p in packs),
        row_execution=stacked("row_execution", executions[:-1]),
        row_path=stacked("row_path"),
        row_start=np.r_[0, np.cumsum(lengths)],
        ids=stacked("ids"),
        target_row=stacked("target_row", rows[:-1]),
        target_column=stacked("target_column"),
        mu=stacked("mu"),
    )


def rows(packed: Packed, start: int, stop: int) -> Packed:
    """The rows [start, stop); n_targets stays that of the whole execution, wherever its rows are."""
    k0, k1 = np.searchsorted(packed.target_row, (start, stop)).tolist()
    a, b = packed.row_start[start], packed.row_start[stop]
    return replace(
        packed,
        row_execution=packed.row_execution[start:stop],
        row_path=packed.row_path[start:stop],
        row_start=packed.row_start[start : stop + 1] - a,
        ids=packed.ids[a:b],
        target_row=packed.target_row[k0:k1] - np.int32(start),
        target_column=packed.target_column[k0:k1],
        mu=packed.mu[k0:k1],
    )


def _executions_slice(packed: Packed, start: int, stop: int, executions_valid: int) -> Packed:
    r0, r1 = np.searchsorted(packed.row_execution, (start, stop)).tolist()
    part = rows(packed, r0, r1)
    return replace(
        part,
        execution_ids=packed.execution_ids[start:stop],
        advantage=packed.advantage[start:stop],
        n_targets=packed.n_targets[start:stop],
        executions_valid=executions_valid,
        row_execution=part.row_execution - np.int32(start),
    )


def micro_steps(packed: Packed, tokens_max: int) -> list[Packed]:
    """Slices of at most `tokens_max` tokens, cut only between executions; together they are `packed`.

    An execution whose paths exceed the bound together is a slice of its own (the backend then takes its
    rows apart).  `executions_valid` of the slices adds up to that of the whole: the first slice
    also carries the executions that need no computing, so there is always one slice.
    Raises PackingError for a path longer than `tokens_max`: it is never cut.
    """
    lengths = packed.row_lengths
    if len(lengths) and (longest := int(lengths.max())) > tokens_max:
        k = int(lengths.argmax())
        name = packed.execution_ids[packed.row_execution[k]]
        raise PackingError(
            f"execution {name}, path {packed.row_path[k]} has {longest} tokens, above "
            f"trainer.tokens_per_micro_step = {tokens_max}: raise it; a path is never cut"
        )
    edges = np.searchsorted(packed.row_execution, np.arange(len(packed.execution_ids) + 1))
    tokens_before = packed.row_start[edges]
    cuts = [0]
    while cuts[-1] < len(packed.execution_ids):  # once a slice
        fits = int(np.searchsorted(tokens_before, tokens_before[cuts[-1]] + tokens_max, "right")) - 1
        cuts.append(max(fits, cuts[-1] + 1))
    if len(cuts) == 1:
        return [packed]
    rest = packed.executions_valid - len(packed.execution_ids)
    return [_executions_slice(packed, a, b, b - a + (0 if a else rest)) for a, b in pairwise(cuts)]
