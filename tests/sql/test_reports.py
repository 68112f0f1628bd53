"""Reports: the staleness identity to the last bit, and figures worked out by hand."""

from __future__ import annotations

import json
import random

import pytest

from lake import events as ev
from tests.support.recorder import Recorder, derive, rows


def bursts(phi: float, mu: int, b: int, steps: int, seed: int) -> Recorder:
    """Boundary dispatch: topped up to (phi + mu) B unconsumed groups; any B of them are consumed a step."""
    rng = random.Random(seed)
    recorder = Recorder()
    recorder.started(json.dumps({"rollout": {"phi": phi, "mu": mu, "groups_per_step": b}}))
    waiting: list[str] = []
    made = 0
    for step in range(steps):
        if step % mu == 0:
            while len(waiting) < round((phi + mu) * b):
                waiting.append(f"g{made}")
                recorder.dispatched(waiting[-1], 2, version=step, boundary=step // mu)
                made += 1
        chosen = [waiting.pop(rng.randrange(len(waiting))) for _ in range(b)]
        recorder.stepped(step, chosen)
        for name in chosen:
            recorder.consumed(name, step=step, version=step)
    return recorder


@pytest.mark.parametrize(
    ("phi", "mu", "b", "steps"),
    [(0.5, 3, 4, 48), (0.0, 4, 3, 8), (1.5, 1, 4, 7), (1 / 3, 3, 3, 9), (0.7, 3, 10, 6), (0.1, 1, 10, 3)],
)
def test_the_staleness_of_whole_bursts_is_the_identity_exactly(phi, mu, b, steps):
    recorder = bursts(phi, mu, b, steps, seed=steps)
    (row,) = rows(recorder, "staleness_identity")
    assert row["difference"] == 0.0
    assert (row["steps"], row["groups_consumed"], row["groups_per_step"]) == (steps, steps * b, b)
    assert (row["phi"], row["mu"]) == (phi, mu)
    assert row["d_mean"] == pytest.approx(row["predicted"], rel=1e-12)
    # what was left over is not a detail here: without it the identity would not hold
    assert (row["age_left"] > 0) == (row["d_mean"] < phi + (mu - 1) / 2 - 1e-12)


def test_one_version_too_many_shows_as_a_difference():
    recorder = bursts(0.5, 2, 2, 8, seed=1)
    record, event = recorder.rows["groups"][-1]
    assert isinstance(event, ev.GroupConsumed)
    recorder.rows["groups"][-1] = (
        record,
        ev.GroupConsumed(time_us=1, group_id=event.group_id, step=event.step, policy_version=8),
    )
    (row,) = rows(recorder, "staleness_identity")
    assert row["difference"] == 1 / 16


@pytest.mark.parametrize("config", ["{}", "not json", '{"rollout": {}}', '{"rollout": {"phi": "many"}}'])
def test_settings_that_are_absent_make_the_prediction_unknown(config):
    recorder = bursts(0.5, 2, 2, 4, seed=1)
    recorder.rows["policy"].pop(0)
    recorder.started(config)
    (row,) = rows(recorder, "staleness_identity")
    assert (row["steps"], row["predicted"], row["difference"]) == (4, None, None)


def lake() -> Recorder:
    recorder = Recorder()
    recorder.whole("a", [1.0, 0.0, None])
    recorder.whole("b", [0.5, 0.5])
    recorder.whole("c", [0.25, 0.75])
    for step, (groups, statistics) in enumerate(
        [(["a", "b"], '{"clip_rate_up": 0.5, "log_s_down": -0.125}'), (["c"], "not json")]
    ):
        recorder.stepped(step, groups, statistics)
        for name in groups:
            recorder.consumed(name, step=step, version=step)
    return recorder


def test_progress_has_a_row_a_step_with_its_scores_and_ages():
    derived = derive(lake(), "progress", "score_by_step", "clip_by_sign", "steps")
    first, second = derived["progress"].to_pylist()
    assert first["score_mean"] == 0.5
    assert (first["executions_valid"], first["executions_missing"]) == (4, 1)
    assert (first["groups"], first["groups_flat"], first["d_mean"]) == (2, 1, 0.0)
    assert (second["new_version"], second["score_mean"], second["d_mean"]) == (2, 0.5, 1.0)
    assert (second["loss"], second["gradient_norm"], second["targets"], second["tokens"]) == (
        0.5,
        0.25,
        50,
        100,
    )
    scores = derived["score_by_step"].to_pylist()
    assert [(r["score_min"], r["score_max"]) for r in scores] == [(0.0, 1.0), (0.25, 0.75)]
    clipped = derived["clip_by_sign"].to_pylist()
    assert [(r["clip_rate_up"], r["clip_rate_down"]) for r in clipped] == [(0.5, None), (None, None)]
    assert [r["log_s_down"] for r in clipped] == [-0.125, None]


def test_a_step_that_is_planned_only_is_not_progress():
    recorder = lake()
    recorder.rows["policy"].pop()
    derived = derive(recorder, "progress", "steps")
    assert derived["progress"]["step"].to_pylist() == [0]
    assert derived["steps"]["new_version"].to_pylist() == [1, None]


def test_calls_by_role_and_relation_and_what_delta_coding_saved():
    recorder = Recorder()
    recorder.dispatched("g", 1)
    recorder.launched("g", "g/0", 0)
    recorder.called("g", "g/0", 0, n_context=10, n_output=5, cached_tokens=0)
    recorder.called("g", "g/0", 1, at=(0, 15), n_context=1, n_output=2, cached_tokens=15)
    recorder.called("g", "g/0", 2, at=(0, 10), n_context=0, n_output=3, retry_of=1, relation="branches")
    recorder.called("g", "g/0", 3, n_context=4, n_output=1, role="sub-agent")
    recorder.undelivered("g", "g/0", 1)
    derived = derive(recorder, "drift", "tokens_by_role", "prefix_savings")
    assert [
        (r["role"], r["relation"], r["cause"], r["calls"], r["shared_tokens"], r["context_tokens"])
        for r in derived["drift"].to_pylist()
    ] == [
        ("main", "branches", "retry of a reply that did not arrive", 1, 10, 0),
        ("main", "extends", None, 1, 15, 1),
        ("main", "restarts", "new conversation", 1, 0, 10),
        ("sub-agent", "restarts", "new conversation", 1, 0, 4),
    ]
    assert [
        (r["role"], r["context_tokens"], r["sampled_tokens"], r["undelivered_tokens"], r["cached_tokens"])
        for r in derived["tokens_by_role"].to_pylist()
    ] == [("main", 11, 10, 2, 15), ("sub-agent", 4, 1, 0, None)]
    (saved,) = derived["prefix_savings"].to_pylist()
    assert (saved["tokens_sent"], saved["tokens_unique"], saved["times"]) == (51, 26, 51 / 26)


def test_tools_and_publications_and_refused_records():
    recorder = Recorder()
    recorder.put(
        ev.ToolCalled,
        group_id="g",
        execution_id="g/0",
        tool_call_id="t",
        call_id=0,
        name="ls",
        arguments=b"{}",
        result=b"abc",
        started_us=5,
        stopped_us=9,
    )
    recorder.put(ev.PolicyPublished, policy_version=3, boundary=1, weights="w", digest="d")
    derived = derive(recorder, "tools", "publications")
    (tool,) = derived["tools"].to_pylist()
    assert (tool["argument_bytes"], tool["result_bytes"], tool["duration_us"]) == (2, 3, 4)
    assert derived["publications"]["policy_version"].to_pylist() == [3]
