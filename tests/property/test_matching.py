"""The matcher against a naive trie: the same parent and shared length, and every input back, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.matching import Matcher, MatchingError


class NaiveTrie:
    """One dict a token; each token remembers the call that put it there first."""

    def __init__(self):
        self.root = {}

    def longest_prefix(self, ids):
        at, owner, shared = self.root, None, 0
        for token in ids:
            if token not in at:
                break
            owner, at = at[token]
            shared += 1
        return owner, shared

    def insert(self, call, ids):
        at = self.root
        for token in ids:
            at = at.setdefault(token, (call, {}))[1]


tokens = st.lists(st.integers(0, 2), max_size=6)


@st.composite
def histories(draw):
    """Calls that extend, branch in the middle of outputs, repeat, are cut, start anew; some undelivered."""
    calls = []
    for _ in range(draw(st.integers(1, 14))):
        base, known = [], None
        if calls and draw(st.booleans()):
            known = draw(st.integers(0, len(calls) - 1))
            earlier_input, earlier_output, delivered, _ = calls[known]
            base = earlier_input + (earlier_output if delivered else [])
            if draw(st.booleans()):
                base, known = base[: draw(st.integers(0, len(base)))], None
        calls.append((base + draw(tokens), draw(tokens), draw(st.booleans()), known))
    return calls


def array(ids):
    return np.array(ids, np.int32)


@settings(max_examples=400, deadline=None)
@given(histories())
def test_same_as_a_naive_trie_and_every_call_reconstructs(calls):
    matcher, naive, events = Matcher(), NaiveTrie(), []
    for call_id, (input_ids, output_ids, delivered, known) in enumerate(calls):
        expected = naive.longest_prefix(input_ids)
        assert matcher.longest_prefix(array(input_ids)) == expected
        assert matcher.longest_prefix(array(input_ids), known) == expected
        kept = output_ids if delivered else []
        assert matcher.insert(call_id, array(input_ids), array(kept), known) == expected
        naive.insert(call_id, input_ids + kept)
        parent, shared = expected
        events.append((parent, shared, input_ids[shared:], output_ids))

    def whole(call_id):
        parent, shared, context, output = events[call_id]
        return ([] if parent is None else whole(parent)[:shared]) + context + output

    for call_id, (input_ids, output_ids, delivered, _) in enumerate(calls):
        assert whole(call_id) == input_ids + output_ids
        assert matcher.whole(call_id).tolist() == input_ids + (output_ids if delivered else [])


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(0, 13), tokens)
def test_a_retracted_output_is_as_if_it_had_never_been_inserted(calls, retracted, probe):
    """Where no later call had come to share it: the same tree as without the output."""
    matcher, naive, parents = Matcher(), NaiveTrie(), []
    retracted %= len(calls)
    for call_id, (input_ids, output_ids, _, _) in enumerate(calls):
        parents.append(matcher.insert(call_id, array(input_ids), array(output_ids)))
    n_input = len(calls[retracted][0])
    matcher.retract(retracted, n_input)
    shared = any(parent == retracted and n > n_input for parent, n in parents)
    for call_id, (input_ids, output_ids, _, _) in enumerate(calls):
        kept = input_ids + (output_ids if call_id != retracted or shared else [])
        naive.insert(call_id, kept)
        assert matcher.whole(call_id).tolist() == kept
    for input_ids, output_ids, _, _ in calls:
        for ids in (input_ids + output_ids + probe, input_ids + probe, probe):
            assert matcher.longest_prefix(array(ids)) == naive.longest_prefix(ids)


def test_what_others_share_outlives_a_retraction():
    matcher = Matcher()
    matcher.insert(0, array([1, 2]), array([3, 4]))
    matcher.insert(1, array([1, 2, 3, 9]))
    matcher.retract(0, 2)
    assert matcher.whole(1).tolist() == [1, 2, 3, 9]
    assert matcher.longest_prefix(array([1, 2, 3, 9, 9])) == (1, 4)


def test_two_roots_and_an_empty_call():
    matcher = Matcher()
    assert matcher.insert(0, array([]), array([])) == (None, 0)
    assert matcher.insert(1, array([5]), array([6])) == (None, 0)
    assert matcher.insert(2, array([7]), array([])) == (None, 0)
    assert matcher.longest_prefix(array([7, 5])) == (2, 1)
    with pytest.raises(MatchingError, match="call 2 is kept already"):
        matcher.insert(2, array([1]))


def test_a_long_history_is_kept_once():
    """400 calls that each resend everything: what is kept is the unique tokens, not the square."""
    rng = np.random.default_rng(0)
    matcher, history = Matcher(), rng.integers(0, 1000, 500).astype(np.int32)
    for call_id in range(400):
        output = rng.integers(0, 1000, 20).astype(np.int32)
        parent, shared = matcher.insert(call_id, history, output)
        assert call_id == 0 or (parent == call_id - 1 and shared == len(history) - 30)
        history = np.concatenate([history, output, rng.integers(0, 1000, 30).astype(np.int32)])
    assert sum(len(kept.own) for kept in matcher._kept.values()) == 500 + 400 * 20 + 399 * 30
