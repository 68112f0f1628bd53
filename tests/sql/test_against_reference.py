"""The models say what a naive reading of the events says, on random lakes."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.lake_cases import lakes
from tests.support.recorder import Recorder, derive
from tests.support.reference import Execution, advantages, number, read

OUTPUTS = ("nodes", "leaves", "leaf_paths", "trees", "admitted", "segments", "weights", "group_state")
RANDOM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def by_execution(table, executions: list[Execution]) -> dict[str, list[dict]]:
    out: dict[str, list[dict]] = {x.name: [] for x in executions}
    for row in table.to_pylist():
        out[row["execution_id"]].append(row)
    return out


@RANDOM
@given(lakes())
def test_nodes_leaves_and_arrays(recorder: Recorder):
    executions = read(recorder)
    got = derive(recorder, "nodes", "leaves", "leaf_paths", "trees")
    nodes, leaves, paths, trees = (by_execution(t, executions) for t in got.values())
    for x in executions:
        starts = sorted(t for t in x.tokens if x.starts(t))
        assert [r["node"] for r in nodes[x.name]] == [number(t) for t in starts]
        if x.status is None:
            assert trees[x.name] == []
            continue
        (tree,) = trees[x.name]
        assert len(tree["token_ids"]) == len(x.tokens)
        for row, t in zip(nodes[x.name], starts, strict=True):
            parent = x.up[t]
            call = x.calls[t[0]]
            inside = [u for u in x.tokens if x.node(u) == t]
            assert row["parent_node"] == (None if parent is None else number(x.node(parent)))
            assert (row["depth_start"], row["depth_end"]) == (t[1], t[1] + len(inside))
            assert (row["sampled"], row["trainable"]) == (x.sampled(t), x.trainable(t))
            own = t[1] - call.shared_len
            n, m = len(inside), call.n_context
            want = np.frombuffer(call.context_ids + call.output_ids, "<i4")[own : own + n]
            assert tree["token_ids"][row["tree_start"] :][:n] == want.tolist()
            if not x.sampled(t):
                assert row["logprob_start"] is None
            else:
                have = tree["logprobs"][row["logprob_start"] :][:n]
                if call.output_logprobs is None:
                    assert len(have) == n
                    assert all(map(math.isnan, have))
                else:
                    assert have == np.frombuffer(call.output_logprobs, "<f4")[own - m :][:n].tolist()
        ends = x.leaves()
        assert {r["leaf"] for r in leaves[x.name]} == {number(t) for t in ends}
        assert {(r["leaf"], r["node"]) for r in paths[x.name]} == {
            (number(leaf), number(x.node(t))) for leaf, end in ends.items() for t in x.route(end)
        }


@RANDOM
@given(lakes(), st.integers(0, 4), st.integers(-3, 2**40))
def test_admission_ownership_and_weights(recorder: Recorder, j_max: int, seed: int):
    executions = read(recorder)
    form = "standardised" if seed % 2 else "centred"
    got = derive(recorder, "admitted", "segments", "weights", j_max=j_max, seed=seed, advantage=form)
    admitted, segments, weights = (by_execution(t, executions) for t in got.values())
    want_advantage = advantages(executions, form)
    for x in executions:
        want = x.admit(seed, j_max)
        assert [(r["path"], r["leaf"], r["role"], r["new_targets"]) for r in admitted[x.name]] == [
            (i + 1, number(leaf), x.calls[leaf[0]].role, len(new)) for i, (leaf, new, _) in enumerate(want)
        ]
        targets: set[tuple[int, int]] = set()
        for i, (_, new, path) in enumerate(want):
            mine = [r for r in segments[x.name] if r["path"] == i + 1]
            assert [r["depth_start"] for r in mine] == sorted(r["depth_start"] for r in mine)
            spread = [
                (r["call_id"], r["depth_start"] + k, r["target"]) for r in mine for k in range(r["length"])
            ]
            assert [t[:2] for t in spread] == path
            assert {t[:2] for t in spread if t[2]} == new
            assert not targets & new
            targets |= new
        if j_max == 0 and x.valid:  # no cap: every trainable token of the task, once
            reached = {t for end in x.leaves().values() for t in x.route(end)}
            assert targets == {t for t in reached if x.trainable(t)}
            assert targets == {t for t in x.tokens if x.trainable(t)}
        (row,) = weights[x.name]
        assert (row["n_targets"], row["n_paths"]) == (len(targets), len(want))
        assert row["valid"] == x.valid
        assert row["assessment"] == (x.score and x.score.assessment)
        if want_advantage[x.name] is None:
            assert row["advantage"] is None
        else:
            assert row["advantage"] == pytest.approx(want_advantage[x.name], rel=1e-9, abs=1e-9)
            assert (row["advantage"] == 0) == (want_advantage[x.name] == 0)
        if targets:
            assert row["token_weight"] * len(targets) == pytest.approx(row["advantage"], rel=1e-12)
        else:
            assert row["token_weight"] is None


@settings(RANDOM, max_examples=10)
@given(lakes(), st.randoms(use_true_random=False))
def test_same_bytes_whatever_the_row_order_threads_and_repeats(recorder: Recorder, random):
    tables = recorder.tables()
    first = derive(tables, *OUTPUTS)
    shuffled = {}
    for name, table in tables.items():
        order = list(range(table.num_rows))
        random.shuffle(order)
        shuffled[name] = table.take(pa.array(order, pa.int64()))
    for topic in recorder.rows:  # every event appended once more
        for event in [event for _, event in recorder.rows[topic]]:
            recorder.add(event)
    for other, threads in ((shuffled, 2), (recorder.tables(), 1)):
        again = derive(other, *OUTPUTS, threads=threads)
        for name in OUTPUTS:
            assert again[name].schema == first[name].schema
            assert str(again[name].to_pylist()) == str(first[name].to_pylist()), name
