"""Reports about scores and training: staleness, versions, roles, flat groups, mismatch; figures by hand."""

from __future__ import annotations

import json
import math

import pytest

from lake import events as ev
from tests.support.recorder import Recorder, rows


def spans(*parts: tuple[int | None, int, int]) -> tuple[ev.VersionSpan, ...]:
    return tuple(ev.VersionSpan(*p) for p in parts)


def group(recorder: Recorder, name: str, version: int, versions: list[tuple[int | None, int, int]]) -> None:
    """Two executions of one call each, dispatched at `version`; the first was sampled by these versions."""
    recorder.dispatched(name, 2, version=version)
    for index in range(2):
        execution = f"{name}/{index}"
        recorder.launched(name, execution, index)
        more = {"spans": spans(*versions)} if index == 0 else {}
        recorder.called(name, execution, 0, n_output=4, **more)
        recorder.finished(name, execution, 1)
        recorder.scored(name, execution, float(index))


def trained() -> Recorder:
    recorder = Recorder()
    group(recorder, "a", 1, [(1, 0, 1), (2, 1, 4)])
    group(recorder, "b", 3, [(3, 0, 4)])
    group(recorder, "c", 5, [(None, 0, 4)])
    recorder.stepped(3, ["a", "b"])
    recorder.stepped(5, ["c"])
    for name, version in (("a", 3), ("b", 3), ("c", 5)):
        recorder.consumed(name, version, version)
    return recorder


def test_staleness_by_group_and_by_token() -> None:
    third, fifth = rows(trained(), "staleness_by_step")
    assert (third["step"], third["groups"], third["groups_unknown"]) == (3, 2, 0)
    assert (third["d_min"], third["d_mean"], third["d_max"]) == (0, 1.0, 2)
    # of 16 targets 8 are of the second executions, whose engine said nothing: 1 of d = 2, 3 of 1, 4 of 0
    assert (third["targets"], third["targets_unknown"]) == (16, 8)
    assert (third["token_d_mean"], third["token_d_max"]) == (5 / 8, 2)
    # case 38: versions that never arrive are unknown and counted, never -1 or 0
    assert (fifth["targets"], fifth["targets_unknown"]) == (8, 8)
    assert (fifth["token_d_mean"], fifth["token_d_max"]) == (None, None)


def test_staleness_as_a_distribution_has_a_row_of_what_is_unknown() -> None:
    found = rows(trained(), "staleness_distribution")
    assert [(r["d"], r["groups"], r["targets"]) for r in found] == [
        (0, 2, 4),
        (1, 0, 3),
        (2, 1, 1),
        (None, 0, 16),
    ]
    assert [r["share"] for r in found] == [2 / 3, 0.0, 1 / 3, 0.0]
    assert [r["share_of_targets"] for r in found] == [4 / 24, 3 / 24, 1 / 24, 16 / 24]


def test_scores_by_the_version_that_began_the_execution() -> None:
    recorder = trained()
    recorder.dispatched("d", 1)
    recorder.launched("d", "d/0", 0)
    recorder.finished("d", "d/0", 0)  # no call, no score
    found = rows(recorder, "score_by_version")
    assert [(r["version"], r["executions"], r["executions_missing"], r["score_mean"]) for r in found] == [
        (1, 1, 0, 0.0),
        (3, 1, 0, 0.0),
        (None, 5, 1, 0.75),
    ]
    assert (found[2]["score_min"], found[2]["score_max"]) == (0.0, 1.0)


def test_scores_by_how_deep_executions_go_in_a_role() -> None:
    recorder = Recorder()
    recorder.dispatched("g", 4)
    for index, (main, below, score) in enumerate([(1, 0, 0.0), (3, 2, 0.5), (2, 7, 1.0), (4, 0, None)]):
        name = f"g/{index}"
        recorder.launched("g", name, index)
        for call_id in range(main + below):
            recorder.called("g", name, call_id, role="main" if call_id < main else "sub-agent")
        recorder.finished("g", name, main + below)
        recorder.scored("g", name, score)
    found = rows(recorder, "score_by_role_depth")
    assert [
        (r["role"], r["depth_from"], r["depth_to"], r["executions"], r["executions_missing"], r["score_mean"])
        for r in found
    ] == [
        ("main", 1, 1, 1, 0, 0.0),
        ("main", 2, 3, 2, 0, 0.75),
        ("main", 4, 7, 1, 1, None),
        ("sub-agent", 0, 0, 2, 1, 0.0),
        ("sub-agent", 2, 3, 1, 0, 0.5),
        ("sub-agent", 4, 7, 1, 0, 1.0),
    ]


def test_case_37_groups_whose_scores_are_equal_are_counted_and_visible() -> None:
    recorder = Recorder()
    recorder.whole("equal", [0.5, 0.5, None], calls=2)
    recorder.whole("differs", [0.0, 1.0])
    recorder.whole("one", [1.0, None])
    recorder.whole("none", [None])
    recorder.dispatched("running", 2)
    recorder.launched("running", "running/0", 0)
    recorder.stepped(0, ["equal", "differs"])
    for name in ("equal", "differs"):
        recorder.consumed(name, 0, 0)
    found = rows(recorder, "zero_variance")
    assert [(r["group_id"], r["step"], r["reason"], r["score"]) for r in found] == [
        ("equal", 0, "all scores equal", 0.5),
        ("none", None, "no valid score", None),
        ("one", None, "one valid score", 1.0),
    ]
    equal = found[0]
    assert (equal["executions"], equal["valid"], equal["missing"], equal["sampled_tokens"]) == (3, 2, 1, 18)
    assert [r["groups_flat"] for r in rows(recorder, "score_by_step")] == [1]
    advantages = [r["advantage"] for r in rows(recorder, "weights") if r["group_id"] == "equal"]
    assert advantages == [0.0, 0.0, None]


def test_missing_assessments_by_evaluator() -> None:
    recorder = Recorder()
    recorder.dispatched("g", 5)
    for index in range(5):
        recorder.launched("g", f"g/{index}", index)
        recorder.finished("g", f"g/{index}", 0)
    recorder.scored("g", "g/0", 0.0, evaluator="tests")
    recorder.scored("g", "g/1", None, evaluator="tests", detail="crashed: disk full")
    recorder.scored("g", "g/2", None, evaluator="judge", detail="first")
    recorder.scored("g", "g/2", 0.25, evaluator="judge", version=1, assessment="partial")  # this one counts
    recorder.scored("g", "g/3", 1.0, evaluator="judge")
    judge, tests, nobody = rows(recorder, "missing_assessments")
    assert (judge["evaluator"], judge["executions"], judge["scored"], judge["partial"]) == ("judge", 2, 1, 1)
    assert (judge["missing"], judge["share"], judge["example"]) == (0, 0.0, None)
    assert (tests["missing"], tests["share"], tests["example"]) == (1, 0.5, "g/1")
    assert tests["example_detail"] == "crashed: disk full"
    assert (nobody["evaluator"], nobody["not_assessed"], nobody["example"]) == (None, 1, "g/4")
    assert (nobody["missing"], nobody["share"]) == (0, 1.0)


def test_cap_and_clip_by_sign_as_the_trainer_said() -> None:
    recorder = Recorder()
    recorder.stepped(0, [], json.dumps({"cap_rate_up": 0.25, "cap_rate": 0.125, "clip_rate_down": 0.5}))
    recorder.stepped(1, [], "{}")
    first, second = rows(recorder, "clip_by_sign")
    assert (first["cap_rate_up"], first["cap_rate_down"], first["cap_rate"]) == (0.25, None, 0.125)
    assert (first["clip_rate_up"], first["clip_rate_down"]) == (None, 0.5)
    assert {v for n, v in second.items() if n != "step"} == {None}


def test_mismatch_by_lag_over_all_steps() -> None:
    def entry(lag: int | None, targets: int, gap: float) -> dict[str, float | None]:
        return {
            "lag": lag,
            "targets": targets,
            "gap": gap,
            "gap_abs": abs(gap),
            "gap_large": float(abs(gap) > math.log(2)),
            "kl3": gap**2,
        }

    recorder = Recorder()
    recorder.stepped(0, [], json.dumps({"by_lag": [entry(0, 30, 0.5), entry(2, 10, -1.0)]}))
    recorder.stepped(1, [], json.dumps({"by_lag": [entry(0, 10, -0.5), entry(None, 50, 2.0)]}))
    recorder.stepped(2, [], json.dumps({"by_lag": []}))
    recorder.stepped(3, [], '{"by_lag": "nothing"}')
    recorder.stepped(4, [], "not json")
    zero, two, unknown = rows(recorder, "mismatch_by_lag")
    assert (zero["lag"], zero["steps"], zero["targets"], zero["share"]) == (0, 2, 40, 0.4)
    assert (zero["gap_mean"], zero["gap_abs_mean"], zero["gap_large"]) == (0.25, 0.5, 0.0)
    assert (two["lag"], two["gap_mean"], two["gap_large"], two["kl3"]) == (2, -1.0, 1.0, 1.0)
    assert (unknown["lag"], unknown["targets"], unknown["gap_mean"]) == (None, 50, pytest.approx(2.0))


def test_differences_are_spread_by_lag_over_the_steps_that_say_so() -> None:
    def entry(lag: int | None, largest: float, *counts: int) -> dict[str, object]:
        return {
            "lag": lag,
            "targets": sum(counts),
            "gap_abs_max": largest,
            "gap_counts": dict(zip(("0.01", "0.02", "inf"), counts, strict=True)),
        }

    recorder = Recorder()
    recorder.stepped(0, [], json.dumps({"by_lag": [entry(0, 0.015, 6, 2, 0), entry(2, 3.0, 1, 0, 1)]}))
    recorder.stepped(1, [], json.dumps({"by_lag": [entry(0, 0.5, 7, 0, 1), entry(None, 0.0, 4, 0, 0)]}))
    recorder.stepped(2, [], json.dumps({"by_lag": [{"lag": 0, "targets": 9, "gap": 0.1}]}))  # older
    recorder.stepped(3, [], "not json")
    found = rows(recorder, "mismatch_distribution")
    assert [(r["lag"], r["above"], r["up_to"], r["targets"]) for r in found] == [
        *((0, 0.0, 0.01, 13), (0, 0.01, 0.02, 2), (0, 0.02, math.inf, 1)),
        *((2, 0.0, 0.01, 1), (2, 0.01, 0.02, 0), (2, 0.02, math.inf, 1)),
        *((None, 0.0, 0.01, 4), (None, 0.01, 0.02, 0), (None, 0.02, math.inf, 0)),
    ]
    assert [r["share"] for r in found[:3]] == [13 / 16, 2 / 16, 1 / 16]
    assert [r["within"] for r in found[:3]] == [13 / 16, 15 / 16, 1.0]
    assert [r["largest"] for r in found[::3]] == [0.5, 3.0, 0.0]
