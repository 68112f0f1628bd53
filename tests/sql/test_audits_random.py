"""The audits hold on random sound lakes under any rules; one edit of a kept row is found by some audit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ingest.derived import OUTPUTS
from ingest.suspects import suspects
from lake.events import TRAINED_ROLES
from lake.models import Params
from tests.support.lake_cases import lakes
from tests.support.recorder import MODELS, Recorder, connect

RANDOM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
RULES = st.builds(
    Params,
    j_max=st.integers(0, 4),
    seed=st.integers(-3, 2**40),
    advantage=st.sampled_from(["centred", "standardised"]),
    roles=st.just(TRAINED_ROLES)
    | st.lists(st.sampled_from(TRAINED_ROLES), min_size=1, unique=True).map(tuple),
)
WITHOUT_A_SAY = {  # columns that follow from others, are for people, or that no rule of the audits holds
    ("nodes", "role_rank"), ("admitted", "role"), ("admitted", "group_id"), ("nodes", "group_id"),
    ("trees", "group_id"), ("trees", "token_ids"), ("trees", "logprobs"), ("weights", "group_id"),
    ("weights", "index"), ("segments", "group_id"), ("weights", "assessment"), ("weights", "value"),
}  # fmt: skip


@RANDOM
@given(lakes(), RULES)
def test_what_is_derived_of_a_sound_lake_violates_nothing(recorder: Recorder, params: Params) -> None:
    events = recorder.tables()
    with connect(events) as con:
        derived = MODELS.derive(con, [*OUTPUTS, "violations", "score_unknown", "lineage_broken"], params)
    for name in ("violations", "score_unknown", "lineage_broken"):
        assert derived[name].to_pylist() == [], name
    if params.roles == TRAINED_ROLES and params.j_max == 0:
        assert suspects(derived, {t: events[f"event_{t}"] for t in ("calls", "executions")}, params) == []


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return 1 if value is None else None


@RANDOM
@given(lakes(), st.data())
def test_one_number_of_a_kept_row_that_is_another_is_found(recorder: Recorder, data: st.DataObject) -> None:
    events = recorder.tables()
    with connect(events) as con:
        derived = MODELS.derive(con, OUTPUTS, Params())
        places = [
            (name, column, row)
            for name in OUTPUTS
            for column in derived[name].column_names
            for row in range(derived[name].num_rows)
            if (name, column) not in WITHOUT_A_SAY and column not in ("execution_id",)
        ]
        assume(places)
        name, column, row = data.draw(st.sampled_from(places))
        rows = derived[name].to_pylist()
        rows[row][column] = other(rows[row][column])
        edited = pa.Table.from_pylist(rows, derived[name].schema)
        derived[name] = edited.sort_by([(key, "ascending") for key in MODELS.by_name[name].key])
        for each in OUTPUTS:
            con.register(each, derived[each])
        found = MODELS.derive(con, ["violations"], Params(), given=OUTPUTS)["violations"].to_pylist()
    assert found, (name, column, rows[row])
    wrong = suspects(derived, {t: events[f"event_{t}"] for t in ("calls", "executions")}, Params())
    assert {r["group_id"] for r in found} <= set(wrong)
