"""Public fault cases 33 to 40, each with its right value: what trainers got wrong about scores and versions.

Numbers and right values are those of the project's list of public cases; each test names its issue.
"""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
import torch

from lake import events as ev
from lake.config import Objective
from tests.support.recorder import Recorder, derive, rows
from trainer.objective import Targets, loss_sum
from trainer.packing import pack


def group(values: list[float | None]) -> list[dict]:
    """The weights of one group of executions with these scores (None: missing)."""
    recorder = Recorder()
    recorder.whole("g", values)
    return rows(recorder, "weights")


def spans(*parts: tuple[int | None, int, int]) -> tuple[ev.VersionSpan, ...]:
    return tuple(ev.VersionSpan(*p) for p in parts)


# trl#6427
def test_case_33_missing_scores_get_no_advantage_and_equal_ones_get_zero() -> None:
    weights = group([None, -1.0, -1.0, None])
    assert [r["advantage"] for r in weights] == [None, 0.0, 0.0, None]
    assert [r["valid"] for r in weights] == [False, True, True, False]
    assert [r["n_targets"] for r in weights] == [0, 3, 3, 0]
    assert [r["token_weight"] for r in weights] == [None, 0.0, 0.0, None]


# NeMo-RL#2207
def test_case_34_a_crashed_verifier_is_missing_and_not_zero() -> None:
    crashed, zero = group([None, 1.0, 2.0]), group([0.0, 1.0, 2.0])
    assert (crashed[0]["assessment"], crashed[0]["value"]) == ("missing", None)
    assert (zero[0]["assessment"], zero[0]["value"]) == ("scored", 0.0)
    assert [r["advantage"] for r in crashed] == [None, -0.5, 0.5]
    assert [r["advantage"] for r in zero] == [-1.0, 0.0, 1.0]


# ms-swift#8123
@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_case_35_one_missing_score_makes_no_nan_and_the_rest_of_the_batch_trains(form: str) -> None:
    """In SQL, and in the trainer: the loss and the gradients are numbers, three of four executions train."""
    recorder = Recorder()
    recorder.whole("g", [0.25, None, 1.0, 0.5])
    derived = derive(recorder, "weights", "segments", "trees", advantage=form)
    weights = derived["weights"].to_pylist()
    assert all(r["advantage"] is None or math.isfinite(r["advantage"]) for r in weights)
    assert sum(r["token_weight"] is not None for r in weights) == 3
    assert sum(r["advantage"] for r in weights if r["valid"]) == pytest.approx(0, abs=1e-12)

    packed = pack(**derived)
    assert packed.execution_ids == ("g/0", "g/2", "g/3")
    assert packed.executions_valid == 3
    targets = Targets(
        torch.tensor(packed.mu),
        torch.tensor(packed.target_execution, dtype=torch.int64),
        torch.tensor(packed.advantage),
        torch.tensor(packed.n_targets),
    )
    pi = targets.mu.clone().requires_grad_()
    loss, _ = loss_sum(pi, targets.mu, targets, Objective())
    loss.backward()
    assert math.isfinite(loss.item())
    assert pi.grad is not None
    assert len(pi.grad) == 9  # three executions of three sampled tokens
    assert bool(torch.isfinite(pi.grad).all())
    assert bool((pi.grad != 0).all())


# miles#2800
def test_case_36_one_execution_lost_to_the_infrastructure_and_the_group_trains_with_seven() -> None:
    recorder = Recorder()
    recorder.dispatched("g", 8)
    for i in range(8):
        recorder.launched("g", f"g/{i}", i)
        recorder.called("g", f"g/{i}", 0)
        recorder.finished("g", f"g/{i}", 1, "lost" if i == 3 else "completed")
        recorder.scored("g", f"g/{i}", None if i == 3 else float(i))
    derived = derive(recorder, "group_state", "weights", "segments")
    assert derived["group_state"]["complete"].to_pylist() == [True]
    weights = derived["weights"].to_pylist()
    assert sum(r["valid"] for r in weights) == 7
    assert sum(r["token_weight"] is not None for r in weights) == 7
    assert weights[3]["advantage"] is None
    assert "g/3" not in set(derived["segments"]["execution_id"].to_pylist())


# verl#5228
@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_case_37_equal_scores_have_no_advantage_and_are_counted(form) -> None:
    recorder = Recorder()
    recorder.whole("flat", [0.1] * 7)  # the mean of seven 0.1 is not 0.1
    recorder.whole("single", [0.3, None, None])
    recorder.whole("other", [0.0, 1.0])
    for name in ("flat", "single", "other"):
        recorder.consumed(name, step=0, version=0)
    derived = derive(recorder, "weights", "group_statistics", "score_by_step", advantage=form)
    flat = [r for r in derived["weights"].to_pylist() if r["group_id"] != "other" and r["valid"]]
    assert [r["advantage"] for r in flat] == [0.0] * 8
    statistics = {r["group_id"]: r for r in derived["group_statistics"].to_pylist()}
    assert statistics["flat"]["zero_variance"]
    assert not statistics["single"]["zero_variance"]
    assert (statistics["single"]["valid"], statistics["single"]["std"]) == (1, None)
    (step,) = derived["score_by_step"].to_pylist()
    assert (step["groups"], step["groups_flat"], step["executions_missing"]) == (3, 2, 2)


# uni-agent#103
def test_case_38_a_version_that_never_arrived_is_unknown_and_reported() -> None:
    recorder = Recorder()
    recorder.dispatched("g", 1, version=2)
    recorder.launched("g", "g/0", 0)
    recorder.called("g", "g/0", 0, spans=spans((None, 0, 3)))
    recorder.called("g", "g/0", 1)
    recorder.finished("g", "g/0", 2)
    recorder.scored("g", "g/0", 1.0)
    recorder.consumed("g", step=3, version=3)
    calls = rows(recorder, "calls")
    assert [(c["version_first"], c["version_last"]) for c in calls] == [(None, None)] * 2
    assert [(r["version"], r["tokens"]) for r in rows(recorder, "versions_by_execution")] == [(None, 6)]
    tables = recorder.tables()
    at = tables["event_groups"].schema.get_field_index("policy_version")
    unknown = pa.nulls(tables["event_groups"].num_rows, pa.int64())
    field = tables["event_groups"].schema.field(at)
    tables["event_groups"] = tables["event_groups"].set_column(at, field, unknown)
    assert [r["d"] for r in rows(tables, "staleness")] == [None]
    (identity,) = rows(tables, "staleness_identity")
    assert identity["groups_of_unknown_version"] == 1
    assert (identity["d_mean"], identity["difference"]) == (None, None)


# UniRL#324
def test_case_39_versions_count_optimizer_steps_not_publications() -> None:
    """Weights are published every third step; sampled at 0 and consumed in step 2 is a staleness of 2."""
    recorder = Recorder()
    recorder.put(ev.PolicyPublished, policy_version=0, boundary=0, weights="w", digest="d")
    recorder.dispatched("a", 1)
    recorder.launched("a", "a/0", 0)
    recorder.called("a", "a/0", 0, n_output=4, spans=spans((0, 0, 4)))
    recorder.finished("a", "a/0", 1)
    recorder.scored("a", "a/0", 1.0)
    for step in range(3):
        recorder.stepped(step, ["a"] if step == 2 else [])
    recorder.consumed("a", 2, 2)
    recorder.put(ev.PolicyPublished, policy_version=3, boundary=1, weights="w", digest="d")
    (row,) = rows(recorder, "staleness_by_step")
    assert (row["d_max"], row["token_d_max"]) == (2, 2)
    assert [p["policy_version"] for p in rows(recorder, "publications")] == [0, 3]


# slime#2092
def test_case_40_one_execution_spans_three_versions() -> None:
    recorder = Recorder()
    recorder.dispatched("g", 1, version=2)
    recorder.launched("g", "g/0", 0)
    recorder.called("g", "g/0", 0, n_output=5, spans=spans((2, 0, 3), (4, 3, 5)))
    recorder.called("g", "g/0", 1, n_output=5, spans=spans((4, 0, 1), (6, 1, 5)))
    recorder.finished("g", "g/0", 2)
    assert [(r["version"], r["calls"], r["tokens"]) for r in rows(recorder, "versions_by_execution")] == [
        (2, 1, 3),
        (4, 2, 3),
        (6, 1, 4),
    ]
    assert [(c["version_first"], c["version_last"]) for c in rows(recorder, "calls")] == [(2, 4), (4, 6)]
