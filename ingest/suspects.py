"""A cheap look at derived rows: the groups that may violate an audit, in a few milliseconds.

The audits in SQL take half as long as deriving a small group.  So the rows of each derivation are looked at
here first, column by column; only of a group that looks wrong is the model `violations` asked, and it alone
decides.  Whatever `violations` would name must look wrong here: the tests of the audits hold both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.events import TRAINED_ROLES
from lake.models import Params

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
VALID = ("scored", "partial")
NULL = -1
MANY = np.int64(1) << 31  # calls of an execution: a node's id is made of the same bits
NEVER = 1 << 20  # the class of roles whose leaves are not drawn


def _ints(table: pa.Table, name: str) -> Ints:
    """A column of integers or truth values as int64, NULL where it is null."""
    return np.asarray(pc.fill_null(table[name].cast(pa.int64()), NULL))


def _floats(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """A column of floats, NaN where it is null."""
    return np.asarray(pc.fill_null(table[name].cast(pa.float64()), float("nan")))


class _Look:
    """The executions of `weights` by their places there, and which of them look wrong."""

    def __init__(self, derived: Mapping[str, pa.Table], params: Params) -> None:
        self.derived, self.params = derived, params
        self.weights = derived["weights"]
        self.n = self.weights.num_rows
        self.wrong = np.zeros(self.n, bool)
        self.strangers: set[str] = set()  # groups with rows of executions that `weights` lacks

    def places(self, table: pa.Table, *, derived: bool = True) -> tuple[Ints, pa.Table]:
        """The place of the execution of each row; others are left out, and wrong where they are derived."""
        at = pc.index_in(table["execution_id"], value_set=self.weights["execution_id"].combine_chunks())
        if at.null_count:
            known = pc.is_valid(at)
            if derived:
                self.strangers |= set(table.filter(pc.invert(known))["group_id"].unique().to_pylist())
            table, at = table.filter(known), at.drop_null()
        return at.to_numpy().astype(np.int64), table

    def total(self, at: Ints, values: npt.NDArray[Any]) -> Ints:
        """The sum of values by execution (exact below 2 ** 53)."""
        return np.bincount(at, weights=values, minlength=self.n).astype(np.int64)

    def mark(self, at: Ints, is_wrong: Bools) -> None:
        self.wrong[at[is_wrong]] = True

    def groups(self) -> list[str]:
        named = self.weights.filter(pa.array(self.wrong))["group_id"].unique().to_pylist()
        return sorted({*named, *self.strangers})


class _Nodes:
    """The nodes, and where a (execution, node) stands among them."""

    def __init__(self, look: _Look) -> None:
        self.at, table = look.places(look.derived["nodes"])
        self.node, self.start, self.end = (_ints(table, n) for n in ("node", "depth_start", "depth_end"))
        self.parent, self.tree, self.logprob, self.call = (
            _ints(table, n) for n in ("parent_node", "tree_start", "logprob_start", "call_id")
        )
        roles = look.params.roles
        places = [roles.index(role) if role in roles else NEVER for role in TRAINED_ROLES]
        self.rank = np.array([*places, NEVER])[_ints(table, "role_rank")]  # in params.roles
        self.sampled, self.trainable = (_ints(table, n) == 1 for n in ("sampled", "trainable"))
        self.length = self.end - self.start
        self._known = np.unique(self.node)
        keys = self._keys(self.at, self.node)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def _keys(self, at: Ints, node: Ints) -> Ints:
        return at * (len(self._known) + 1) + np.searchsorted(self._known, node)

    def find(self, at: Ints, node: Ints) -> Ints:
        """The row of each (execution, node), NULL where there is none."""
        if not len(self._sorted):
            return np.full(len(at), NULL)
        keys = self._keys(at, node)
        place = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        row = self._order[place]
        return np.where((self.at[row] == at) & (self.node[row] == node), row, NULL)


@dataclass(frozen=True, kw_only=True)
class _Paths:
    """The paths as their segments walk them, one element a path; `walks`: which nodes are on any."""

    at: Ints
    path: Ints
    leaf: Ints
    rank: Ints
    targets: Ints
    walks: Bools


def _look_at_nodes(look: _Look, nodes: _Nodes) -> None:
    """Each has the parent it needs; one after the other they are the arrays of `trees`."""
    above = nodes.find(nodes.at, nodes.parent)
    if len(above):
        look.mark(nodes.at, (nodes.start > 0) & ((above == NULL) | (nodes.end[above] != nodes.start)))
        look.mark(nodes.at, (nodes.start == 0) & (nodes.parent != NULL))
        look.mark(nodes.at, (nodes.length <= 0) | (nodes.node != (nodes.call << 32) + nodes.start))
    at, trees = look.places(look.derived["trees"])
    for array, start, rows in (
        ("token_ids", nodes.tree, np.ones(len(nodes.at), bool)),
        ("logprobs", nodes.logprob, nodes.sampled),
    ):
        of, length = nodes.at[rows], nodes.length[rows]
        size = look.total(at, pc.list_value_length(trees[array]).to_numpy())
        look.wrong |= look.total(of, length) != size
        before = np.cumsum(length) - length  # over all executions
        first = np.searchsorted(of, of)  # the first node of the execution: they are in its order
        look.mark(of, start[rows] != before - before[first] if len(of) else np.zeros(0, bool))
    look.mark(nodes.at, ~nodes.sampled & (nodes.logprob != NULL))
    look.wrong |= np.bincount(at, minlength=look.n) > 1


def _look_at_calls(look: _Look, nodes: _Nodes, calls: pa.Table, barred: pa.Table) -> None:
    """The nodes of a call are its own tokens, context and output apart, trainable as the call is."""
    at, calls = look.places(calls, derived=False)
    keys, first = np.unique(at * MANY + _ints(calls, "call_id"), return_index=True)
    of = nodes.at * MANY + nodes.call
    row = np.searchsorted(keys, of)
    if not len(of):
        return
    known = (row < len(keys)) & (keys[np.minimum(row, len(keys) - 1)] == of) if len(keys) else row < 0
    look.mark(nodes.at, ~known)
    if not known.all():
        return
    shared, context, output = (_ints(calls, n)[first][row] for n in ("shared_len", "n_context", "n_output"))
    middle = shared + context
    look.mark(nodes.at, nodes.sampled != (nodes.start >= middle))
    look.mark(nodes.at, ~nodes.sampled & (nodes.end > middle))
    begins = np.r_[True, of[1:] != of[:-1]]
    look.mark(nodes.at, nodes.start != np.where(begins, shared, np.roll(nodes.end, 1)))
    look.mark(nodes.at, np.r_[begins[1:], True] & (nodes.end != middle + output))
    bars, barred = look.places(barred, derived=False)
    barred_nodes = np.isin(of, bars * MANY + _ints(barred, "call_id"))
    task = pc.not_equal(calls["role"], "auxiliary").to_numpy()[first][row]
    look.mark(nodes.at, nodes.trainable != (nodes.sampled & ~barred_nodes & task))


def _look_at_segments(look: _Look, nodes: _Nodes, barred: pa.Table) -> _Paths:
    """Segment by segment: each is its node, continues the one before, and is a target once at most.

    barred  execution_id and call_id of the calls that must not be trained
    """
    at, s = look.places(look.derived["segments"])
    path, node, depth, length, call = (
        _ints(s, n) for n in ("path", "node", "depth_start", "length", "call_id")
    )
    target = _ints(s, "target") == 1
    row = nodes.find(at, node)
    first = np.r_[True, (at[1:] != at[:-1]) | (path[1:] != path[:-1])][: len(at)]
    look.mark(at, row == NULL)
    look.mark(at, depth != np.where(first, 0, np.roll(depth + length, 1)))
    look.mark(at, nodes.parent[row] != np.where(first, NULL, np.roll(node, 1)))
    for name, wanted in (
        ("call_id", nodes.call), ("depth_start", nodes.start), ("length", nodes.length),
        ("tree_start", nodes.tree), ("logprob_start", nodes.logprob), ("sampled", nodes.sampled),
    ):  # fmt: skip
        look.mark(at, _ints(s, name) != wanted[row])
    look.mark(at, target & ~nodes.trainable[row])
    bars, barred = look.places(barred, derived=False)
    look.mark(at, target & np.isin(at * MANY + call, bars * MANY + _ints(barred, "call_id")))
    owned, times = np.unique(row[target], return_counts=True)
    look.mark(nodes.at[owned], times > 1)
    heads = np.flatnonzero(first)
    ends = np.r_[heads[1:], len(at)][: len(heads)] - 1
    walks = np.zeros(len(nodes.at), bool)
    walks[row] = True
    return _Paths(
        at=at[heads], path=path[heads], leaf=node[ends], rank=nodes.rank[row[ends]],
        targets=np.add.reduceat(np.where(target, length, 0), heads), walks=walks,
    )  # fmt: skip


def _look_at_paths(look: _Look, paths: _Paths) -> None:
    """Path by path: as admitted, numbered from 1 on, the highest class first."""
    same = np.r_[False, paths.at[1:] == paths.at[:-1]][: len(paths.at)]
    look.mark(paths.at, paths.path != np.where(same, np.roll(paths.path, 1) + 1, 1))
    look.mark(paths.at, same & (paths.rank < np.roll(paths.rank, 1)))
    at, admitted = look.places(look.derived["admitted"])
    drawn = np.stack([at, *(_ints(admitted, n) for n in ("path", "leaf", "new_targets"))])
    walked = np.stack([paths.at, paths.path, paths.leaf, paths.targets])
    if drawn.shape == walked.shape:
        differ = (drawn != walked).any(axis=0)
        look.mark(at, differ)
        look.mark(paths.at, differ | (paths.targets <= 0))
    else:
        look.mark(at, np.ones(len(at), bool))
        look.mark(paths.at, np.ones(len(paths.at), bool))


def _is_left(look: _Look, nodes: _Nodes, paths: _Paths) -> tuple[Bools, Bools]:
    """Whether an execution may have left something that could be drawn; and of a higher class than its last.

    A leaf that may be drawn is a node of its own role, so that nodes stand for leaves here.
    """
    lowest = np.full(look.n, NULL)
    np.maximum.at(lowest, paths.at, paths.rank)
    highest = np.full(look.n, NEVER)
    np.minimum.at(highest, nodes.at[~paths.walks], nodes.rank[~paths.walks])
    idle = look.total(nodes.at[nodes.trainable & ~paths.walks], nodes.length[nodes.trainable & ~paths.walks])
    return (idle > 0) & (highest < NEVER), (idle > 0) & (highest < lowest)


def _look_at_weights(look: _Look, paths: _Paths, is_left: Bools, is_class_left: Bools) -> None:
    """Counts, validity, sums; advantages beside those of the group; nothing left out that had room."""
    targets, numbers = look.total(paths.at, paths.targets), np.bincount(paths.at, minlength=look.n)
    w, j_max = look.weights, look.params.j_max
    n_targets, n_paths, valid = _ints(w, "n_targets"), _ints(w, "n_paths"), _ints(w, "valid") == 1
    advantage, weight, value = (_floats(w, n) for n in ("advantage", "token_weight", "value"))
    assessed = pc.is_in(w["assessment"], value_set=pa.array(VALID)).to_numpy()
    has_advantage, has_weight = (pc.is_valid(w[n]).to_numpy() for n in ("advantage", "token_weight"))
    room = (j_max == 0) | (n_paths < j_max)
    look.wrong |= (n_targets != targets) | (n_paths != numbers) | ((n_paths > 0) & ~(valid & assessed))
    look.wrong |= (j_max > 0) & (n_paths > j_max)
    look.wrong |= (valid != has_advantage) | (has_weight != (valid & (n_targets > 0)))
    with np.errstate(all="ignore"):
        off = ~(np.abs(weight * n_targets - advantage) <= 1e-12 * np.abs(advantage))
        look.wrong |= (has_advantage & ~np.isfinite(advantage)) | (has_weight & off)
        look.wrong |= valid & (is_class_left | (is_left & room))
        codes = w["group_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        size = int(codes.max(initial=-1)) + 1
        low, high = np.full(size, np.inf), np.full(size, -np.inf)
        largest = np.zeros(size)
        np.minimum.at(low, codes[valid], value[valid])
        np.maximum.at(high, codes[valid], value[valid])
        np.maximum.at(largest, codes[valid], np.abs(advantage[valid]))
        total = np.bincount(codes[valid], weights=advantage[valid], minlength=size)
        count = np.bincount(codes[valid], minlength=size)
        odd = ~(np.abs(total) <= 5e-10 * count * largest) | ((low == high) & (largest != 0))
        look.wrong |= valid & odd[codes]


def _barred(events: Mapping[str, pa.Table]) -> pa.Table:
    """The calls that may not be trained: undelivered, without log-probabilities, of a lost execution."""
    names = ["group_id", "execution_id", "call_id"]
    calls, executions = events["calls"], events["executions"]
    lost = executions.filter(pc.equal(executions["status"], "lost"))["execution_id"].combine_chunks()
    bad = pc.or_(
        pc.or_(pc.invert(calls["delivered"]), pc.is_null(calls["n_logprobs"])),
        pc.is_in(calls["execution_id"], value_set=lost),
    )
    unseen = executions.filter(pc.equal(executions["type"], "reply.undelivered"))
    return pa.concat_tables([calls.filter(bad).select(names), unseen.select(names)])


def suspects(derived: Mapping[str, pa.Table], events: Mapping[str, pa.Table], params: Params) -> list[str]:
    """The groups whose rows look wrong; `derived` in the order of the models' keys, as they were derived.

    events  topic -> the event rows that they were derived from (calls and executions are looked at)
    """
    look = _Look(derived, params)
    nodes = _Nodes(look)
    _look_at_nodes(look, nodes)
    barred = _barred(events)
    _look_at_calls(look, nodes, events["calls"], barred)
    if len(nodes.at) and derived["segments"].num_rows:
        paths = _look_at_segments(look, nodes, barred)
    else:
        look.places(derived["segments"])
        none = np.zeros(0, np.int64)
        walks = np.zeros(len(nodes.at), bool)
        paths = _Paths(at=none, path=none, leaf=none, rank=none, targets=none, walks=walks)
    _look_at_paths(look, paths)
    _look_at_weights(look, paths, *_is_left(look, nodes, paths))
    return look.groups()
