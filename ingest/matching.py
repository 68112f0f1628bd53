"""Delta coding: what a call shares with the earlier calls of its execution.

A radix tree over int32 token buffers.  Each edge is a range of one call's own tokens, so a token
stands in memory once however many calls pass over it; comparing is numpy's, a range at a time.

    matcher = Matcher()
    parent, shared = matcher.longest_prefix(input_ids)
    matcher.insert(call_id, input_ids, output_ids)
    matcher.whole(call_id)                              the ids again

Canonical form (design note trajectories.md): `shared` is as large as it can be, and the parent is
the call that owns token `shared - 1`, that is, the first call that put this token on this path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
EMPTY: Ids = np.zeros(0, np.int32)


@dataclass(slots=True)
class _Edge:
    """Tokens [start, end) of the owner's sequence; children by their first token."""

    owner: int
    start: int
    end: int
    children: dict[int, _Edge]


@dataclass(slots=True, frozen=True)
class _Kept:
    """What a call added: its sequence is the parent's first `shared` tokens, then `own`."""

    parent: int | None
    shared: int
    own: Ids


class MatchingError(ValueError):
    """A call that cannot be kept: which, and why."""


def _common(a: Ids, b: Ids) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    at = int(differs.argmax()) if n else 0
    return at if n and differs[at] else n


class Matcher:
    """The calls of one execution; nothing is forgotten."""

    def __init__(self) -> None:
        self._root = _Edge(-1, 0, 0, {})
        self._kept: dict[int, _Kept] = {}
        self._ends: dict[int, _Edge] = {}  # the edge on which a call's sequence ends

    def _tokens(self, edge: _Edge) -> Ids:
        kept = self._kept[edge.owner]
        return kept.own[edge.start - kept.shared : edge.end - kept.shared]

    def _walk(self, ids: Ids, edge: _Edge, at: int) -> tuple[_Edge, int]:
        """Go on from a place with ids[at:]: (edge, depth) of the deepest place that they reach."""
        while at < len(ids):
            if at == edge.end:
                child = edge.children.get(int(ids[at]))
                if child is None:
                    break
                edge = child
            inside = at - edge.start
            same = _common(self._tokens(edge)[inside:], ids[at:])
            at += same
            if at < edge.end:
                break
        return edge, at

    def _start(self, known: int | None) -> tuple[_Edge, int]:
        if known is None:
            return self._root, 0
        kept = self._kept[known]
        return self._ends[known], kept.shared + len(kept.own)

    def longest_prefix(self, ids: Ids, known: int | None = None) -> tuple[int | None, int]:
        """(owner of the last shared token, number of shared tokens); (None, 0) where nothing is shared.

        `known`: a kept call whose whole sequence ids begin with, by construction: it is not compared
        again, so that the time is linear in the tokens that are new.
        """
        edge, at = self._walk(ids, *self._start(known))
        return (edge.owner, at) if at else (None, 0)

    def insert(
        self, call_id: int, input_ids: Ids, output_ids: Ids = EMPTY, known: int | None = None
    ) -> tuple[int | None, int]:
        """Keep a call; returns longest_prefix(input_ids), the form in which it is recorded.

        An output that nobody can extend (it never reached the harness) is not given.
        Raises MatchingError where the call is kept already.
        """
        if call_id in self._kept:
            raise MatchingError(f"call {call_id} is kept already")
        edge, at = self._walk(input_ids, *self._start(known))
        parent, shared = (edge.owner, at) if at else (None, 0)
        self._kept[call_id] = _Kept(parent, shared, np.concatenate([input_ids[shared:], output_ids]))
        self._place(call_id, np.concatenate([input_ids, output_ids]), edge, at)
        return parent, shared

    def _place(self, call_id: int, ids: Ids, edge: _Edge, at: int) -> None:
        """Hang what no earlier call has into the tree, from a place on its path.

        That may be less than the call's own tokens: where its output repeats a sibling's, the tree
        goes on with the sibling's.
        """
        edge, at = self._walk(ids, edge, at)
        if at < len(ids):
            if at < edge.end:
                self._split(edge, at)
            edge.children[int(ids[at])] = edge = _Edge(call_id, at, len(ids), {})
        self._ends[call_id] = edge

    def _split(self, edge: _Edge, middle: int) -> None:
        lower = _Edge(edge.owner, middle, edge.end, edge.children)
        for call_id, end in self._ends.items():
            kept = self._kept[call_id]
            if end is edge and kept.shared + len(kept.own) > middle:
                self._ends[call_id] = lower
        edge.end = middle
        edge.children = {int(self._tokens(lower)[0]): lower}

    def retract(self, call_id: int, input_len: int) -> None:
        """Take back a call's output: its answer did not reach the harness after all.

        Where a later call has come to share a part of it, it stays.  The tree is planted again, which
        is linear in everything kept: it happens when a connection breaks within one reply.
        """
        kept = self._kept[call_id]
        if any(k.parent == call_id and k.shared > input_len for k in self._kept.values()):
            return
        self._kept[call_id] = _Kept(kept.parent, kept.shared, kept.own[: input_len - kept.shared])
        self._root = _Edge(-1, 0, 0, {})
        self._ends = {}
        for each in self._kept:
            self._place(each, self.whole(each), self._root, 0)

    def whole(self, call_id: int) -> Ids:
        """The call's whole kept sequence, put together again from what each call added."""
        kept = self._kept[call_id]
        parts, parent, end = [kept.own], kept.parent, kept.shared
        while parent is not None:
            above = self._kept[parent]
            parts.append(above.own[: end - above.shared])
            parent, end = above.parent, above.shared
        return np.concatenate(parts[::-1])
