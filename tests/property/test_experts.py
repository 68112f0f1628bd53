"""Routed experts that are kept once a token become the whole again, along every path of any tree of calls."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.matching import Matcher
from lake.events import EventError
from lake.experts import ExpertsMissing, Piece, along, covered, pack, path_to, unpack
from tests.support.routing import EXPERTS, routed


@dataclass(frozen=True)
class Call:
    call_id: int
    parent_call_id: int | None
    shared_len: int
    n_context: int
    n_output: int
    experts: str


TOKENS = st.lists(st.integers(0, 1), max_size=6)
STEPS = st.tuples(st.integers(0, 8), st.integers(0, 9), TOKENS, TOKENS, st.booleans())


@settings(max_examples=120, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=9))
def test_pieces_put_together_are_the_whole(steps: list[tuple[int, int, list[int], list[int], bool]]) -> None:
    matcher, calls, wholes = Matcher(), list[Call](), list[np.ndarray]()
    pieces: list[Piece | None] = []
    reach: list[int] = []
    for call_id, (on, cut, context, output, engine_tells) in enumerate(steps):
        before = wholes[on % len(wholes)] if wholes else np.zeros(0, np.int32)
        prompt = np.array([*before[: max(0, len(before) - cut)], 0, *context], np.int32)
        parent, shared = matcher.longest_prefix(prompt)
        matcher.insert(call_id, prompt, np.array(output, np.int32))
        whole = np.array([*prompt, *output], np.int32)
        start = covered(shared, None if parent is None else reach[parent])
        assert start <= shared
        rows = routed(whole)[start:]
        piece = unpack(pack(start, rows, EXPERTS.count)) if engine_tells and len(rows) else None
        calls.append(Call(call_id, parent, shared, len(prompt) - shared, len(output), ""))
        wholes.append(whole)
        pieces.append(piece)
        reach.append(start if piece is None else piece.end)
    for call_id, whole in enumerate(wholes):
        path = [(until, pieces[call.call_id]) for until, call in path_to(calls, call_id)]
        if reach[call_id] < len(whole) - 1 or all(piece is None for _, piece in path):
            with pytest.raises(ExpertsMissing, match=f"of {len(whole)} has no routed experts"):
                along(path)
        else:
            assert along(path).tolist() == routed(whole).tolist()


def test_no_token_of_a_history_is_kept_twice() -> None:
    rng = np.random.default_rng(0)
    matcher, kept, whole, reach, parent = Matcher(), 0, np.zeros(0, np.int32), 0, None
    for call_id in range(40):
        prompt = np.concatenate([whole, rng.integers(0, 1000, 30, np.int32)])
        parent, shared = matcher.longest_prefix(prompt)
        output = rng.integers(0, 1000, 20, np.int32)
        matcher.insert(call_id, prompt, output)
        whole = np.concatenate([prompt, output])
        start = covered(shared, None if parent is None else reach)
        kept += len(routed(whole)) - start
        reach = len(whole) - 1
    assert (kept, len(whole)) == (40 * 50 - 1, 40 * 50)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**40),
    st.sampled_from([1, 8, 128, 256, 257, 1 << 16]),
    st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 8)),
)
def test_a_piece_is_read_as_it_was_packed(start: int, number: int, shape: tuple[int, int, int]) -> None:
    rows = np.random.default_rng(start).integers(0, number, shape)
    data = pack(start, rows.astype(np.int32), number)
    piece = unpack(data)
    assert (piece.start, piece.end, piece.number) == (start, start + shape[0], number)
    assert piece.rows.dtype == (np.uint8 if number <= 256 else np.uint16)
    assert (piece.rows == rows).all()
    assert pack(piece.start, piece.rows, piece.number) == data


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_event_error_or_give_rows(data: st.DataObject) -> None:
    good = bytearray(pack(3, np.arange(24).reshape(4, 3, 2), 24))
    for _ in range(data.draw(st.integers(0, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(EventError):
        assert unpack(bytes(good[: data.draw(st.integers(0, len(good)))])).rows.ndim == 3
