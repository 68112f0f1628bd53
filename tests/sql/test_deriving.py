"""Deriving with audits: what is held back, and that the groups beside it are derived as without it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ingest.derived import OUTPUTS, of_groups
from ingest.deriving import NOT_DERIVED, Deriving, said
from ingest.open_groups import STATE_TOPICS
from lake.models import Params
from tests.support.recorder import MODELS, Recorder

GROUPS = [f"g{n}" for n in range(5)]


@pytest.fixture
def deriving() -> Iterator[Deriving]:
    made = Deriving(MODELS, Params())
    yield made
    made.close()


def events() -> dict[str, pa.Table]:
    recorder = Recorder()
    for number, group in enumerate(GROUPS):
        recorder.whole(group, [0.0, 1.0, None, number / 7], calls=3)
    return {topic: recorder.tables()[f"event_{topic}"] for topic in STATE_TOPICS}


def with_calls(rows: dict[str, pa.Table], group: str, column: str, value: int) -> dict[str, pa.Table]:
    """The last call of each execution of a group with another number."""
    calls = rows["calls"]
    last = pc.and_(pc.equal(calls["group_id"], group), pc.equal(calls["call_id"], 2))
    at = calls.schema.get_field_index(column)
    changed = pc.if_else(last, pa.scalar(value, pa.int64()), calls[column])
    return {**rows, "calls": calls.set_column(at, calls.schema.field(at), changed)}


def test_a_group_that_cannot_be_derived_is_held_back_alone(deriving: Deriving) -> None:
    right = deriving.derive(events(), GROUPS)
    assert right.violations.num_rows == 0
    made = deriving.derive(with_calls(events(), "g2", "shared_len", 2**63 - 2), GROUPS)
    assert [(r["group_id"], r["audit"]) for r in made.violations.to_pylist()] == [("g2", NOT_DERIVED)]
    assert said(made.violations, "g2") == "not_derived (1 rows)"
    others = [g for g in GROUPS if g != "g2"]
    for name in OUTPUTS:
        assert made.tables[name].equals(of_groups(right.tables[name], others).combine_chunks()), name


def test_rows_that_violate_are_named_and_the_rows_of_the_others_are_the_same(deriving: Deriving) -> None:
    right = deriving.derive(events(), GROUPS)
    made = deriving.derive(with_calls(events(), "g3", "shared_len", 2), GROUPS)  # of no parent
    assert made.violating == {"g3"}
    assert "orphan_node (4 rows)" in said(made.violations, "g3")
    others = [g for g in GROUPS if g != "g3"]
    for name in OUTPUTS:
        assert of_groups(made.tables[name], others).equals(of_groups(right.tables[name], others)), name
