"""The generator of traces: the same from the same seed, canonical when coded, and of the shape it says."""

from __future__ import annotations

import dataclasses

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lake.models import Models, Params, register
from lake.store import Store
from lake.tables import SCHEMAS
from tests.bench import traces

EXECUTIONS = range(8)


@pytest.fixture(scope="module")
def raws():
    return [traces.raw_calls(e, traces.SMALL) for e in EXECUTIONS]


def same(a, b):
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))


def test_an_execution_is_the_same_whatever_else_is_generated(raws):
    assert same(traces.raw_calls(5, traces.SMALL), raws[5])
    assert not np.array_equal(traces.raw_calls(5, traces.SMALL, seed=1).output_ids, raws[5].output_ids)
    assert not np.array_equal(raws[4].output_ids, raws[5].output_ids)


def test_it_has_everything_that_makes_trees(raws):
    calls = [(r.input_of(c).tobytes(), r.output_of(c).tobytes()) for r in raws for c in range(r.calls)]
    inputs = [i for i, _ in calls]
    assert len(set(calls)) < len(calls), "the same call twice"
    assert len(set(inputs)) < len(set(calls)), "the same input with different outputs"
    assert any((i, o[:n]) in calls for i, o in set(calls) for n in range(4, len(o), 4)), "an output cut short"
    assert {int(role) for r in raws for role in r.roles} == set(range(len(traces.ROLES)))
    assert all(r.calls == traces.SMALL.calls for r in raws)
    longest = max(int(np.diff(r.input_offsets).max()) for r in raws)
    assert traces.SMALL.context_max / 2 < longest < traces.SMALL.context_max * 2
    for raw in raws:
        ends = raw.message_ends[raw.message_offsets[1:] - 1]
        assert np.array_equal(ends, np.diff(raw.input_offsets)), "the last message ends with the input"
    first = [int(r.input_of(0)[0]) for r in raws]
    assert len(set(first[:4])) == 1, "a group begins with one prompt"


def test_coded_calls_are_canonical_and_give_every_input_back(raws):
    for raw in raws:
        coded = traces.coded(raw)
        owners: dict[bytes, int] = {}  # every prefix that there was, and who came first
        wholes = []
        for c in range(raw.calls):
            ids, output = raw.input_of(c), raw.output_of(c)
            shared = int(coded.shared[c])
            there = [n for n in range(1, len(ids) + 1) if ids[:n].tobytes() in owners]
            assert shared == max(there, default=0)
            assert int(coded.parents[c]) == (owners[ids[:shared].tobytes()] if shared else -1)
            own = coded.context_ids[coded.context_offsets[c] : coded.context_offsets[c + 1]]
            before = wholes[coded.parents[c]][:shared] if shared else own[:0]
            wholes.append(np.concatenate([before, own, output]))
            assert np.array_equal(wholes[c], np.concatenate([ids, output]))
            for n in range(1, len(wholes[c]) + 1):
                owners.setdefault(wholes[c][:n].tobytes(), c)


def test_rows_of_raw_calls_hold_the_buffers(raws):
    table = traces.to_arrow(raws)
    assert table.num_rows == sum(r.calls for r in raws)
    assert table["output_logprobs"].type == pa.list_(pa.float32())
    row = table.slice(traces.SMALL.calls * 2 + 7, 1).to_pylist()[0]
    assert (row["group_id"], row["execution_id"], row["call_id"]) == ("group-00000", "group-00000/2", 7)
    assert row["input_ids"] == raws[2].input_of(7).tolist()
    assert row["output_ids"] == raws[2].output_of(7).tolist()
    assert row["role"] == traces.ROLES[raws[2].roles[7]]


def test_a_lake_repeats_its_executions_under_other_ids(raws, tmp_path):
    rows = traces.lake(str(tmp_path), 16, distinct=8, shape=traces.SMALL)
    assert rows == {"calls": 960, "executions": 32, "scores": 16, "groups": 4}
    store = Store(str(tmp_path))
    tables = {f"event_{name}": store.table(f"events/{name}", SCHEMAS[name]).read() for name in rows}
    with duckdb.connect() as con:
        register(con, tables)
        models = Models.load()
        found = models.derive(con, ["leaves", "valid_executions", "trees", "orphan_node"], Params())
    assert found["orphan_node"].num_rows == 0
    assert found["valid_executions"].num_rows == 16
    leaves = [traces.coded(r).leaves for r in raws]
    by_execution = found["leaves"].group_by("execution_id").aggregate([("leaf", "count")])
    counted = {row["execution_id"]: row["leaf_count"] for row in by_execution.to_pylist()}
    assert counted == {f"group-{e // 4:05d}/{e}": leaves[e % 8] for e in range(16)}
    by_name = {row["execution_id"]: row["token_ids"] for row in found["trees"].to_pylist()}
    assert by_name["group-00000/3"] == by_name["group-00002/11"]


@pytest.mark.parametrize(("executions", "distinct"), [(16, 6), (12, 8)])
def test_only_whole_groups_are_repeated(executions, distinct):
    with pytest.raises(ValueError, match=f"{executions} executions of {distinct} distinct ones"):
        next(traces.event_tables(executions, distinct, traces.SMALL))
