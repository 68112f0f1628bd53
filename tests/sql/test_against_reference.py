"""The models say what a naive reading of the events says, on random lakes."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from lake import events as ev
from tests.support.lake_cases import lakes
from tests.support.recorder import Recorder, derive
from tests.support.reference import CLASSES, Execution, advantages, number, read

OUTPUTS = ("nodes", "leaves", "leaf_paths", "trees", "admitted", "segments", "weights", "group_state")
ROLES = st.just(CLASSES) | st.lists(st.sampled_from(CLASSES), min_size=1, unique=True).map(tuple)
RANDOM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def calls_of(recorder: Recorder) -> list[ev.ModelCalled]:
    return [event for _, event in recorder.rows["calls"] if isinstance(event, ev.ModelCalled)]


def roots(recorder: Recorder) -> Counter[str]:
    first = {c.event_id: c for c in calls_of(recorder)}
    return Counter(c.execution_id for c in first.values() if c.parent_call_id is None)


def is_cut(recorder: Recorder) -> bool:
    """Whether a call leaves another within its output."""
    by_id = {(c.execution_id, c.call_id): c for c in calls_of(recorder)}
    for call in by_id.values():
        parent = by_id.get((call.execution_id, call.parent_call_id))
        if parent is not None:
            at = call.shared_len - parent.shared_len - parent.n_context
            if 0 < at < parent.n_output:
                return True
    return False


KINDS = {
    "two roots": lambda r: max(roots(r).values(), default=0) > 1,
    "an empty output": lambda r: any(not c.output_ids for c in calls_of(r)),
    "an empty call": lambda r: any(not c.output_ids and not c.context_ids for c in calls_of(r)),
    "a branch within an output": is_cut,
    "an event twice": lambda r: len({c.event_id for c in calls_of(r)}) < len(calls_of(r)),
    "an auxiliary call": lambda r: any(c.role == "auxiliary" for c in calls_of(r)),
    "a summary": lambda r: any(c.role.endswith("summary") for c in calls_of(r)),
    "an answer that was not delivered": lambda r: any(not c.delivered for c in calls_of(r)),
    "one of which this came later": lambda r: any(
        e.TYPE == "reply.undelivered" for _, e in r.rows["executions"]
    ),
    "a retry": lambda r: any(c.retry_of is not None for c in calls_of(r)),
    "no log-probabilities": lambda r: any(c.output_logprobs is None for c in calls_of(r)),
    "a second attempt": lambda r: any(getattr(e, "attempt", 0) for _, e in r.rows["executions"]),
    "a score of a later version": lambda r: any(e.version for _, e in r.rows["scores"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_lakes_have(kind: str):
    """Raises NoSuchExample where the lakes of this file never have it."""
    once = settings(RANDOM, max_examples=200, phases=[Phase.generate], database=None)
    find(lakes(), KINDS[kind], settings=once, random=Random(0))


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
@given(lakes(), st.integers(0, 4), st.integers(-3, 2**40), ROLES)
def test_admission_ownership_and_weights(recorder: Recorder, j_max: int, seed: int, roles: tuple[str, ...]):
    executions = read(recorder)
    form = "standardised" if seed % 2 else "centred"
    rules = {"j_max": j_max, "seed": seed, "advantage": form, "roles": roles}
    got = derive(recorder, "admitted", "segments", "weights", **rules)
    admitted, segments, weights = (by_execution(t, executions) for t in got.values())
    want_advantage = advantages(executions, form)
    for x in executions:
        want = x.admit(seed, j_max, roles)
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
            ends = [end for leaf, end in x.leaves().items() if x.calls[leaf[0]].role in roles]
            reached = {t for end in ends for t in x.route(end)}
            assert targets == {t for t in reached if x.trainable(t)}
            assert len(roles) < len(CLASSES) or targets == {t for t in x.tokens if x.trainable(t)}
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
    for other, threads in ((shuffled, 1), (shuffled, 2), (shuffled, 4), (recorder.tables(), 2)):
        again = derive(other, *OUTPUTS, threads=threads)
        for name in OUTPUTS:
            assert again[name].schema == first[name].schema
            assert str(again[name].to_pylist()) == str(first[name].to_pylist()), name
