"""The compiled parts of the matcher: a radix tree in flat arrays that its owner lets grow.

    tokens  (T,)    int32   what each call added, one call after the other
    calls   (C, 5)  int64   PARENT, SHARED, BASE (where its own tokens begin), LENGTH (of them), END
    edges   (E, 8)  int64   ABOVE, OWNER, START, END, AT, HEIR, two that fill a cache line; edge 0, which
                            no call owns (-1), is the root
    table   (H, 2)  int64   (edge << 32 | first token, child): children by their first token; child 0 is none
    counts  (3,)    int64   how many tokens, calls and edges there are

An edge stands for tokens [START, END) of its owner's sequence, which lie from AT on in `tokens`; ABOVE is the
edge that it hangs on, HEIR the child that was last taken: most calls take it again, and need no table.

What is compared is compared token by token, in blocks that LLVM makes vectors of; the table only finds a
child, whose key is its edge and token themselves.  The memory of 100k tokens is read at its own speed.
The arrays have room when a kernel writes: `insert` says what it lacks, and changes nothing then.
"""

# ruff: noqa: ANN001, ANN201, ANN202, PLR0917  compiled functions take untyped arrays, by place
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import int64, types, void

PARENT, SHARED, BASE, LENGTH, LAST = range(5)
ABOVE, OWNER, START, END, AT, HEIR = range(6)
TOKENS, CALLS, EDGES = range(3)
BEGIN, KNOWN, DEPTH = range(3)
EDGES_A_CALL = 2
"""A call hangs on at most one new edge, and splits at most one."""
BLOCK, FEW = 64, 8
"""Tokens compared at once: four cache lines; FEW at the end of what is shared."""

_IDS = types.Array(types.int32, 1, "C", readonly=True)
_OFFSETS = types.Array(int64, 1, "C", readonly=True)
_TREE = (types.int32[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1])


def compiled(*signature: Any) -> Any:
    """Compile, for one signature so that read-only arrays make no second version; kept on disk.

    Numba keeps it in `__pycache__` beside this file, else in the user's cache folder, else it cannot keep
    it: then every process compiles again, some seconds.
    """

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(*signature, cache=True)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return numba.njit(*signature)(function)

    return decorate


@compiled()
def _common(a, b):
    """Length of the common prefix of two arrays, the first not longer than the second."""
    n, done = len(a), 0
    while done + BLOCK <= n:
        x, y = a[done : done + BLOCK], b[done : done + BLOCK]
        differs = np.int32(0)
        for k in range(BLOCK):
            differs |= x[k] ^ y[k]
        if differs != 0:
            break
        done += BLOCK
    while done + FEW <= n:
        x, y = a[done : done + FEW], b[done : done + FEW]
        differs = np.int32(0)
        for k in range(FEW):
            differs |= x[k] ^ y[k]
        if differs != 0:
            break
        done += FEW
    while done < n and a[done] == b[done]:
        done += 1
    return done


@compiled()
def _copy(values, out, start):
    """Write values from `start` on: a loop compiles in a third of the time of a slice, to the same code."""
    for k in range(len(values)):
        out[start + k] = values[k]


@compiled()
def _place(table, edge, token):
    """Where in the table the child of an edge that begins with a token stands, or would."""
    key = (edge << 32) | (int64(token) & 0xFFFFFFFF)
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mask = len(table) - 1
    at = int64(mixed & np.uint64(mask))
    while table[at, 1] != 0 and table[at, 0] != key:
        at = (at + 1) & mask
    return at


@compiled()
def _put(table, edge, token, child):
    at = _place(table, edge, token)
    table[at, 0] = (edge << 32) | (int64(token) & 0xFFFFFFFF)
    table[at, 1] = child


@compiled()
def _walk(tokens, edges, table, ids, first, edge, at):
    """Go on from a place with ids (at depths from `first` on): (edge, depth) of the deepest place."""
    stop = first + len(ids)
    while at < stop:
        if at == edges[edge, END]:
            token = ids[at - first]
            child = edges[edge, HEIR]
            if child == 0 or tokens[edges[child, AT]] != token:
                child = table[_place(table, edge, token), 1]
                if child == 0:
                    break
                edges[edge, HEIR] = child
            edge = child
        n = min(edges[edge, END], stop) - at
        there = edges[edge, AT] + at - edges[edge, START]
        same = _common(tokens[there : there + n], ids[at - first :])
        at += same
        if same < n:
            break
    return edge, at


@compiled()
def _at(calls, edges, call, depth):
    """The edge on which the sequence of a call passes a depth; the root for depth 0."""
    edge = calls[call, LAST] if depth > 0 else int64(0)
    while edge != 0 and depth <= edges[edge, START]:
        edge = edges[edge, ABOVE]
    return edge


@compiled()
def _split(tokens, edges, table, counts, edge, middle):
    """Cut an edge in two: the lower half keeps its number, so that what hangs on it stays; the upper one."""
    upper, above = counts[EDGES], edges[edge, ABOVE]
    counts[EDGES] += 1
    for field in range(HEIR):
        edges[upper, field] = edges[edge, field]
    edges[upper, END], edges[upper, HEIR] = middle, edge
    _put(table, above, tokens[edges[edge, AT]], upper)
    if edges[above, HEIR] == edge:
        edges[above, HEIR] = upper
    edges[edge, ABOVE] = upper
    edges[edge, AT] += middle - edges[edge, START]
    edges[edge, START] = middle
    _put(table, upper, tokens[edges[edge, AT]], edge)
    return upper


@compiled()
def _hang(tokens, calls, edges, table, counts, call, edge, at):
    """Hang what no earlier call has of a call into the tree, from the place where its own tokens begin.

    That may be less than its own tokens: where its output repeats a sibling's, the tree goes on with those.
    """
    base, shared = calls[call, BASE], calls[call, SHARED]
    end = shared + calls[call, LENGTH]
    edge, at = _walk(tokens, edges, table, tokens[base : base + end - shared], shared, edge, at)
    if at < end:
        if at < edges[edge, END]:
            edge = _split(tokens, edges, table, counts, edge, at)
        new = counts[EDGES]
        counts[EDGES] += 1
        edges[new, ABOVE], edges[new, OWNER] = edge, call
        edges[new, START], edges[new, END] = at, end
        edges[new, AT], edges[new, HEIR] = base + at - shared, 0
        _put(table, edge, tokens[edges[new, AT]], new)
        edges[edge, HEIR] = new
        edge = new
    calls[call, LAST] = edge


@compiled()
def _keep(tokens, calls, edges, table, counts, edge, at, context, output):
    """Keep a call that leaves an edge at a depth, with its own; -1, or the tokens there is no room for."""
    n, call, base = len(context) + len(output), counts[CALLS], counts[TOKENS]
    crowded = 2 * (counts[EDGES] + EDGES_A_CALL) > min(2 * len(edges), len(table))
    if base + n > len(tokens) or call == len(calls) or crowded:
        return n
    _copy(context, tokens, base)
    _copy(output, tokens, base + len(context))
    counts[TOKENS] += n
    counts[CALLS] += 1
    calls[call, PARENT], calls[call, SHARED] = edges[edge, OWNER], at
    calls[call, BASE], calls[call, LENGTH] = base, n
    _hang(tokens, calls, edges, table, counts, call, edge, at)
    return -1


@compiled(types.UniTuple(int64, 2)(*_TREE, _IDS, int64, int64))
def longest_prefix(tokens, calls, edges, table, _counts, ids, known, depth):
    """(number of the call that owns the last shared token, tokens shared); (-1, 0) without any."""
    edge = _at(calls, edges, known, depth)
    edge, at = _walk(tokens, edges, table, ids, 0, edge, depth)
    return edges[edge, OWNER], at


@compiled(types.UniTuple(int64, 2)(*_TREE, _IDS, _OFFSETS, _IDS, _OFFSETS, int64[:, ::1], int64))
def insert(tokens, calls, edges, table, counts, ids, id_offsets, outputs, output_offsets, places, first):
    """Keep calls from `first` on; (the first that is not kept, the tokens there is no room for).

    places  (n, 3)  BEGIN: the depth at which the given ids of a call begin; KNOWN, DEPTH: a place that it
                    passes (a call, a depth of it): what lies above is not compared
    """
    for c in range(first, len(id_offsets) - 1):
        own = ids[id_offsets[c] : id_offsets[c + 1]]
        output = outputs[output_offsets[c] : output_offsets[c + 1]]
        begin, depth = places[c, BEGIN], places[c, DEPTH]
        edge = _at(calls, edges, places[c, KNOWN], depth)
        edge, at = _walk(tokens, edges, table, own, begin, edge, depth)
        lacking = _keep(tokens, calls, edges, table, counts, edge, at, own[at - begin :], output)
        if lacking >= 0:
            return c, lacking
    return len(id_offsets) - 1, int64(-1)


@compiled(void(*_TREE, int64, types.int32[::1]))
def whole(tokens, calls, _edges, _table, _counts, call, out):
    """Write the whole sequence of a call."""
    end = len(out)
    while call >= 0 and end > 0:
        shared, base = calls[call, SHARED], calls[call, BASE]
        _copy(tokens[base : base + end - shared], out, shared)
        end, call = shared, calls[call, PARENT]


@compiled(void(int64[:, ::1], int64[:, ::1]))
def rehash(old, table):
    """Fill an empty table with what another holds."""
    for k in range(len(old)):
        if old[k, 1] != 0:
            key = old[k, 0]
            _put(table, key >> 32, key & 0xFFFFFFFF, old[k, 1])
