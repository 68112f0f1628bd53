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
    """The calls of one execution.  Time per call is linear in its tokens; nothing is forgotten."""

    def __init__(self) -> None:
        self._root = _Edge(-1, 0, 0, {})
        self._kept: dict[int, _Kept] = {}

    def _tokens(self, edge: _Edge) -> Ids:
        kept = self._kept[edge.owner]
        return kept.own[edge.start - kept.shared : edge.end - kept.shared]

    def _walk(self, ids: Ids) -> tuple[_Edge, int, int]:
        """(edge, tokens matched inside it, tokens matched in all): the deepest place that ids reach."""
        edge, inside, at = self._root, 0, 0
        while at < len(ids):
            child = edge.children.get(int(ids[at]))
            if child is None:
                break
            tokens = self._tokens(child)
            inside = _common(tokens, ids[at:])
            edge, at = child, at + inside
            if inside < len(tokens):
                break
        return edge, inside, at

    def longest_prefix(self, ids: Ids) -> tuple[int | None, int]:
        """(owner of the last shared token, number of shared tokens); (None, 0) where nothing is shared."""
        edge, _, at = self._walk(ids)
        return (edge.owner, at) if at else (None, 0)

    def insert(self, call_id: int, input_ids: Ids, output_ids: Ids = EMPTY) -> tuple[int | None, int]:
        """Keep a call; returns longest_prefix(input_ids), the form in which it is recorded.

        An output that nobody can extend (it never reached the harness) is not given.
        Raises MatchingError where the call is kept already.
        """
        if call_id in self._kept:
            raise MatchingError(f"call {call_id} is kept already")
        parent, shared = self.longest_prefix(input_ids)
        self._kept[call_id] = _Kept(parent, shared, np.concatenate([input_ids[shared:], output_ids]))
        self._place(call_id, np.concatenate([input_ids, output_ids]))
        return parent, shared

    def _place(self, call_id: int, ids: Ids) -> None:
        """Hang what no earlier call has into the tree.

        That may be less than the call's own tokens: where its output repeats a sibling's, the tree
        goes on with the sibling's.
        """
        edge, inside, at = self._walk(ids)
        if at < len(ids):
            if inside < edge.end - edge.start:
                self._split(edge, inside)
            edge.children[int(ids[at])] = _Edge(call_id, at, len(ids), {})

    def _split(self, edge: _Edge, inside: int) -> None:
        middle = edge.start + inside
        lower = _Edge(edge.owner, middle, edge.end, edge.children)
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
        for each in self._kept:
            self._place(each, self.whole(each))

    def whole(self, call_id: int) -> Ids:
        """The call's whole kept sequence, put together again from what each call added."""
        kept = self._kept[call_id]
        parts, parent, end = [kept.own], kept.parent, kept.shared
        while parent is not None:
            above = self._kept[parent]
            parts.append(above.own[: end - above.shared])
            parent, end = above.parent, above.shared
        return np.concatenate(parts[::-1])
