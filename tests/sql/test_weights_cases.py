"""Scores and weights: what counts, what is missing, what an advantage is."""

from __future__ import annotations

import math

import pytest

from tests.support.recorder import Recorder, derive, rows


def group(values: list[float | None], **params: object) -> list[dict]:
    recorder = Recorder()
    recorder.whole("g", values)
    return rows(recorder, "weights", **params)


def advantages(values: list[float | None], **params: object) -> list[float | None]:
    return [r["advantage"] for r in group(values, **params)]


def test_standardised_divides_by_the_sample_deviation():
    assert advantages([1.0, 2.0, 3.0, 6.0], advantage="standardised") == pytest.approx(
        [(v - 3.0) / math.sqrt(14 / 3) for v in (1, 2, 3, 6)], rel=1e-15
    )
    assert advantages([1e-200, 2e-200], advantage="standardised") == [0.0, 0.0]  # squares vanish: no 0/0


def test_a_partial_score_after_a_timeout_is_an_ordinary_score():
    recorder = Recorder()
    recorder.dispatched("g", 2)
    for i, (status, assessment) in enumerate([("harness_timeout", "partial"), ("completed", "scored")]):
        recorder.launched("g", f"g/{i}", i)
        recorder.called("g", f"g/{i}", 0)
        recorder.finished("g", f"g/{i}", 1, status)
        recorder.scored("g", f"g/{i}", float(i), assessment=assessment)
    weights = rows(recorder, "weights")
    assert [(r["assessment"], r["advantage"]) for r in weights] == [("partial", -0.5), ("scored", 0.5)]


def test_no_artefact_is_a_scored_zero_without_targets():
    recorder = Recorder()
    recorder.whole("g", [1.0])
    recorder.launched("g", "g/1", 1)
    recorder.finished("g", "g/1", 0, "crashed")
    recorder.scored("g", "g/1", 0.0)
    derived = derive(recorder, "weights", "trees")
    assert [(r["advantage"], r["n_targets"], r["token_weight"]) for r in derived["weights"].to_pylist()] == [
        (0.5, 3, 0.5 / 3),
        (-0.5, 0, None),
    ]
    assert derived["trees"].to_pylist()[1]["token_ids"] == []


def test_an_execution_that_branched_counts_once():
    recorder = Recorder()
    recorder.whole("g", [0.0, 3.0], calls=1)
    recorder.launched("g", "g/2", 2)
    for call_id in range(3):
        recorder.called("g", "g/2", call_id)
    recorder.finished("g", "g/2", 3)
    recorder.scored("g", "g/2", 6.0)
    weights = rows(recorder, "weights")
    assert [r["advantage"] for r in weights] == [-3.0, 0.0, 3.0]
    assert (weights[2]["n_paths"], weights[2]["n_targets"], weights[2]["token_weight"]) == (3, 9, 1 / 3)


def test_the_latest_version_before_the_group_was_ready_counts():
    recorder = Recorder()
    recorder.whole("g", [0.0, 0.0])
    recorder.scored("g", "g/1", 1.0, version=2)
    recorder.scored("g", "g/1", 5.0, version=1, evaluator="slow")  # later, but an older version
    end = len(recorder.rows["scores"])
    recorder.scored("g", "g/1", 9.0, version=3)
    assert [r["value"] for r in rows(recorder, "weights")] == [0.0, 9.0]
    recorder.ready("g", scores_end=end, set_name="another")
    assert [r["value"] for r in rows(recorder, "weights")] == [0.0, 9.0]
    assert [r["value"] for r in rows(recorder, "weights", set_name="another")] == [0.0, 1.0]


def test_a_place_that_was_lost_is_that_of_its_latest_attempt():
    recorder = Recorder()
    recorder.whole("g", [1.0])
    recorder.launched("g", "g/1", 1)
    recorder.called("g", "g/1", 0)
    recorder.finished("g", "g/1", 1, "lost")
    assert rows(recorder, "group_state")[0]["complete"]  # size 1: the place beyond it does not count
    recorder.launched("g", "g/1b", 1, attempt=1)
    recorder.called("g", "g/1b", 0)
    recorder.finished("g", "g/1b", 1)
    recorder.scored("g", "g/1b", 0.0)
    derived = derive(recorder, "weights", "nodes")
    assert derived["weights"]["execution_id"].to_pylist() == ["g/0", "g/1b"]
    assert set(derived["nodes"]["execution_id"].to_pylist()) == {"g/0", "g/1b"}
