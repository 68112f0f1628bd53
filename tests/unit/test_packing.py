"""Packing against a naive reading of the same tables, and each contradiction that it refuses."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.derived import random_tables
from trainer.packing import PackingError, join, micro_steps, pack, rows


def same(a, b):
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))


def packed(seed, **options):
    t = random_tables(seed, **options)
    return t, pack(t.weights, t.segments, t.trees)


def replaced(table, name, row, value):
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, table[name].type))


@given(st.integers(0, 10_000), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_equal_to_a_naive_reading(seed, depth):
    t, p = packed(seed, depth=depth)
    wanted = sorted(name for name in t.valid if t.advantage[name] != 0)
    assert p.execution_ids == tuple(wanted)
    assert p.executions_valid == len(t.valid)
    assert p.advantage.tolist() == [t.advantage[name] for name in wanted]
    keys = [key for key in sorted(t.paths) if key[0] in wanted]
    assert [(p.execution_ids[e], j) for e, j in zip(p.row_execution, p.row_path, strict=True)] == keys
    for r, key in enumerate(keys):
        path, mine = t.paths[key], p.target_row == r
        assert p.ids[p.row_start[r] : p.row_start[r + 1]].tolist() == path.ids
        assert p.target_column[mine].tolist() == path.at
        assert p.mu[mine].tolist() == path.mu
    assert np.bincount(p.target_execution, minlength=len(wanted)).tolist() == p.n_targets.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_token_weights_of_an_execution_sum_to_its_advantage(seed):
    _, p = packed(seed)
    each = (p.advantage / p.n_targets)[p.target_execution]
    np.testing.assert_allclose(np.bincount(p.target_execution, each), p.advantage, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_tables_has_no_say(seed):
    t, p = packed(seed)
    rng = np.random.default_rng(seed)
    mixed = [x.take(rng.permutation(x.num_rows)) for x in (t.weights, t.segments, t.trees)]
    chunked = [pa.concat_tables([x.slice(0, 3), x.slice(3)]) for x in mixed]
    assert same(pack(*chunked), p)


def test_two_groups_join_as_if_packed_together():
    (a, p), (b, q) = packed(1, group="g1"), packed(2, group="g2")
    both = pack(*(pa.concat_tables([getattr(a, n), getattr(b, n)]) for n in ("weights", "segments", "trees")))
    assert same(join([p, q]), both)
    with pytest.raises(PackingError, match="comes twice"):
        join([p, p])


@given(st.integers(0, 1000), st.integers(40, 400))
@settings(max_examples=40, deadline=None)
def test_micro_steps_cut_between_executions_and_lose_nothing(seed, tokens_max):
    _, p = packed(seed, executions=12)
    if p.rows and p.row_lengths.max() > tokens_max:
        with pytest.raises(PackingError, match="never cut"):
            micro_steps(p, tokens_max)
        return
    parts = micro_steps(p, tokens_max)
    assert sum(part.executions_valid for part in parts) == p.executions_valid
    assert all(part.tokens <= tokens_max or len(part.execution_ids) == 1 for part in parts)
    for part in parts:
        assert (
            np.bincount(part.target_execution, minlength=len(part.n_targets)).tolist()
            == part.n_targets.tolist()
        )
    assert same(join(parts), p)
    for a, b in pairwise(parts):  # greedy: no slice could have taken one more
        first = rows(b, 0, int((b.row_execution == 0).sum()))
        assert a.tokens + first.tokens > tokens_max


def test_a_path_above_the_bound_is_named():
    _, p = packed(0)
    longest = int(p.row_lengths.argmax())
    name, n = p.execution_ids[p.row_execution[longest]], int(p.row_lengths.max())
    with pytest.raises(
        PackingError, match=f"execution {name}, path {p.row_path[longest]} has {n} tokens.*{n - 1}"
    ):
        micro_steps(p, n - 1)
    assert micro_steps(p, n)


def test_advantage_zero_counts_and_is_not_computed():
    t, _ = packed(0)
    zero = t.weights.set_column(6, "advantage", pa.array([0.0] * t.weights.num_rows))
    zero = zero.set_column(9, "token_weight", pa.array([0.0] * t.weights.num_rows))
    p = pack(zero, t.segments, t.trees)
    assert (p.rows, p.tokens, p.targets, p.executions_valid) == (0, 0, 0, len(t.valid))
    (part,) = micro_steps(p, 10)
    assert part.executions_valid == len(t.valid)


def test_nothing_valid_is_an_empty_pack():
    t, _ = packed(0)
    none = t.weights.set_column(3, "valid", pa.array([False] * t.weights.num_rows))
    assert pack(none, t.segments, t.trees).executions_valid == 0
    nothing = pack(t.weights.slice(0, 0), t.segments.slice(0, 0), t.trees.slice(0, 0))
    assert (nothing.rows, nothing.executions_valid) == (0, 0)


def test_null_log_probabilities_matter_only_under_targets():
    t, p = packed(4)
    values = t.trees["logprobs"].to_pylist()
    used = {name: set() for name in t.trees["execution_id"].to_pylist()}
    for s in t.segments.filter(t.segments["target"]).to_pylist():
        used[s["execution_id"]] |= set(range(s["logprob_start"], s["logprob_start"] + s["length"]))
    spare = [[*v, None] for v in values]
    trees = t.trees.set_column(3, "logprobs", pa.array(spare, t.trees["logprobs"].type))
    assert same(pack(t.weights, t.segments, trees), p)
    name = p.execution_ids[0]
    row = t.trees["execution_id"].to_pylist().index(name)
    hole = list(values[row])
    hole[next(iter(used[name]))] = None
    with pytest.raises(PackingError, match=f"execution {name}: a target's log-probability is null"):
        pack(t.weights, t.segments, replaced(t.trees, "logprobs", row, hole))


def _first(t, p, *, target):
    """The row of `segments` of a computed execution that is (not) a target."""
    for k, s in enumerate(t.segments.to_pylist()):
        if (
            s["execution_id"] in p.execution_ids
            and s["target"] is target
            and (target or s["depth_start"] == 0)
        ):
            return k, s
    raise AssertionError("the random tables hold none")


def test_each_contradiction_is_refused_with_the_execution():
    t, p = packed(4)
    k, s = _first(t, p, target=True)
    name = s["execution_id"]
    head, _ = _first(t, p, target=False)
    w = t.weights["execution_id"].to_pylist().index(name)
    n, a = t.weights["n_targets"][w].as_py(), t.weights["advantage"][w].as_py()
    wrong = [
        ("needs tokens", {"segments": replaced(t.segments, "tree_start", k, 10**6)}),
        ("needs log-probabilities", {"segments": replaced(t.segments, "logprob_start", k, 10**6)}),
        ("gap or an overlap", {"segments": replaced(t.segments, "depth_start", k, s["depth_start"] + 1)}),
        ("no length", {"segments": replaced(t.segments, "length", k, 0)}),
        ("was not sampled", {"segments": replaced(t.segments, "sampled", k, False)}),
        ("no log-probabilities", {"segments": replaced(t.segments, "logprob_start", k, None)}),
        ("tree_start is null", {"segments": replaced(t.segments, "tree_start", k, None)}),
        ("its segments hold", {"segments": replaced(t.segments, "target", k, False)}),
        ("its segments hold", {"segments": t.segments.slice(0, 0)}),
        ("token_weight", {"weights": replaced(t.weights, "token_weight", w, a / n * 1.01)}),
        ("not a finite number", {"weights": replaced(t.weights, "advantage", w, None)}),
        ("its tree is missing", {"trees": t.trees.slice(0, 0)}),
        ("trees has an execution twice", {"trees": pa.concat_tables([t.trees, t.trees])}),
        ("weights has an execution twice", {"weights": pa.concat_tables([t.weights, t.weights])}),
        ("lacks logprobs", {"trees": t.trees.drop_columns("logprobs")}),
    ]
    for message, change in wrong:
        with pytest.raises(PackingError, match=message):
            pack(**({"weights": t.weights, "segments": t.segments, "trees": t.trees} | change))
    first = replaced(t.segments, "target", head, True)
    first = replaced(replaced(first, "sampled", head, True), "logprob_start", head, 0)
    with pytest.raises(PackingError, match="first token of a path is a target"):
        pack(t.weights, first, t.trees)
