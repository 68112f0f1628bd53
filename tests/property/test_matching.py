"""The matcher against a naive trie: the same parent and shared length, and every input back, exactly."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import caching

from ingest import matching_kernels
from ingest.matching import Matcher, MatchingError, encode, encode_rows
from lake.events import ModelCalled, ids_to_bytes


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
    matcher, history, unique = Matcher(), rng.integers(0, 1000, 500).astype(np.int32), 500
    for call_id in range(400):
        output = rng.integers(0, 1000, 20).astype(np.int32)
        parent, shared = matcher.insert(call_id, history, output)
        assert call_id == 0 or (parent == call_id - 1 and shared == len(history) - 30)
        history = np.concatenate([history, output, rng.integers(0, 1000, 30).astype(np.int32)])
        unique += 50
    assert matcher.nbytes < 2 * 4 * unique + 400 * 600


@settings(max_examples=300, deadline=None)
@given(histories())
def test_many_at_once_are_as_one_after_the_other(calls):
    matcher, offsets = Matcher(), lambda lists: np.cumsum([0, *map(len, lists)])
    inputs, outputs = [c[0] for c in calls], [c[1] for c in calls]
    one_by_one = [matcher.insert(k, array(i), array(o)) for k, (i, o, _, _) in enumerate(calls)]
    flat_inputs, flat_outputs = (array([*itertools.chain(*lists)]) for lists in (inputs, outputs))
    parents, shared = encode(flat_inputs, offsets(inputs), flat_outputs, offsets(outputs))
    assert [(None if p < 0 else p, n) for p, n in zip(parents, shared, strict=True)] == one_by_one


@settings(max_examples=200, deadline=None)
@given(st.lists(histories(), min_size=1, max_size=3), st.randoms(use_true_random=False), st.integers(1, 3))
def test_rows_of_many_executions_in_any_mixture(executions, random, chunks):
    """Calls of an execution in order, those of others between them, in any chunks."""
    order = [k for k, calls in enumerate(executions) for _ in calls]
    random.shuffle(order)
    left = [list(calls) for calls in executions]
    rows = [(str(k), *left[k].pop(0)[:2]) for k in order]
    table = pa.table(
        {
            "execution_id": pa.array([r[0] for r in rows], pa.string()),
            "input_ids": pa.array([r[1] for r in rows], pa.list_(pa.int32())),
            "output_ids": pa.array([r[2] for r in rows], pa.list_(pa.int32())),
        }
    )
    step = -(-len(rows) // chunks)
    parts = [table.slice(start, step) for start in range(0, len(rows), step)]
    parents, shared = encode_rows(pa.concat_tables(parts))
    found = {str(k): [] for k in range(len(executions))}
    for (execution, _, _), parent, n in zip(rows, parents, shared, strict=True):
        found[execution].append((None if parent < 0 else parent, n))
    for k, calls in enumerate(executions):
        matcher = Matcher()
        assert found[str(k)] == [matcher.insert(c, array(i), array(o)) for c, (i, o, *_) in enumerate(calls)]


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(0, 13), tokens)
def test_restored_from_what_was_recorded_it_goes_on_as_if_never_dropped(calls, at, probe):
    matcher, restored, recorded = Matcher(), Matcher(), []
    at %= len(calls)
    for call_id, (input_ids, output_ids, delivered, _) in enumerate(calls):
        kept = array(output_ids if delivered else [])
        if call_id == at:
            restored = Matcher.restored(recorded)
        parent, shared = matcher.insert(call_id, array(input_ids), kept)
        recorded.append(recorded_call(call_id, parent, shared, input_ids[shared:], kept))
        if call_id >= at:
            assert restored.insert(call_id, array(input_ids), kept) == (parent, shared)
    for call_id, (input_ids, output_ids, _, _) in enumerate(calls):
        assert restored.whole(call_id).tolist() == matcher.whole(call_id).tolist()
        ids = array(input_ids + output_ids + probe)
        assert restored.longest_prefix(ids) == matcher.longest_prefix(ids)


def recorded_call(call_id, parent, shared, context, output):
    return ModelCalled(
        time_us=1, group_id="g", execution_id="e", call_id=call_id, role="main", parent_call_id=parent,
        shared_len=shared, context_ids=ids_to_bytes(context), output_ids=ids_to_bytes(output),
        output_logprobs=None, relation="extends",
    )  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 3000), st.integers(0, 2**32 - 1))
def test_thousands_of_children_of_one_edge(width, seed):
    """Each call leaves the prompt by a token of its own, up to the largest id."""
    rng = np.random.default_rng(seed)
    matcher, prompt = Matcher(), array([7] * 70)
    firsts = rng.choice(2**31 - 1, width, replace=False)
    for call_id, first in enumerate(firsts):
        own = array([first, 1])
        assert matcher.insert(call_id, prompt, own) == ((0, 70) if call_id else (None, 0))
    for call_id in rng.integers(0, width, 50).tolist():
        assert matcher.longest_prefix(np.append(prompt, array([firsts[call_id], 1, 5]))) == (call_id, 72)


@pytest.mark.parametrize("length", [1, 7, 8, 63, 64, 65, 127, 128, 129, 1000])
def test_the_first_difference_is_found_wherever_it_is(length):
    base = np.arange(length, dtype=np.int32)
    for at in {0, 1, length // 2, length - 2, length - 1} & set(range(length)):
        matcher, other = Matcher(), base.copy()
        other[at] = 2**31 - 1
        matcher.insert(0, base)
        assert matcher.longest_prefix(other) == ((0, at) if at else (None, 0))


def test_any_buffer_of_ids_is_taken():
    """Read-only ones, views with a stride, other integer types, bytes that are not aligned."""
    matcher, ids = Matcher(), np.arange(100, dtype=np.int32)
    matcher.insert(0, ids)
    odd = np.frombuffer(b"x" + ids.tobytes(), np.uint8)[1:].view(np.int32)
    read_only = np.frombuffer(ids.tobytes(), np.int32)
    for same in (odd, read_only, np.repeat(ids, 2)[::2], ids.astype(np.int64), ids.tolist()):
        assert matcher.longest_prefix(same) == (0, 100)


def test_a_matcher_is_not_restored_from_less_than_all_calls():
    first = recorded_call(0, None, 0, [1, 2], [])
    for second, sentence in (
        (recorded_call(1, 0, 3, [4], []), "call 1 shares 3 tokens with call 0, which has 2 here"),
        (recorded_call(3, 2, 1, [4], []), "call 3 shares 1 tokens with call 2, which has 0 here"),
        (first, "call 0 is kept already"),
    ):
        with pytest.raises(MatchingError, match=sentence):
            Matcher.restored([first, second])
    with pytest.raises(MatchingError, match="1 inputs and 2 outputs"):
        encode(array([1]), array([0, 1]), array([1]), array([0, 1, 1]))


def test_compiled_code_that_cannot_be_kept_is_compiled_again(monkeypatch):
    """A package folder that cannot be written, and no home: numba would refuse to compile at all."""
    monkeypatch.setattr(caching.FunctionCache._impl_class, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(_twice)
    assert matching_kernels.compiled("int64(int64)")(_twice)(21) == 42


def _twice(n):
    return 2 * n
