"""The loss and its gradient against the printed formulas, written a second time and without torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from lake.config import Objective
from tests.support.batch import random_batch
from trainer.objective import GAP_EDGES, GAP_LARGE, Targets, add_up, by_lag, finish, loss_sum

CLIP = 0.05  # wide enough that some executions are masked and some are not
FORMS = [("token", "mu"), ("token", "recomputed"), ("gspo", "mu"), ("gspo", "recomputed")]


def naive(pi, base, old, b, config):
    """The sum of objective.md token by token; what is under stop_gradient is taken at `base`."""
    total, mu, n = 0.0, b.mu, b.n
    for i, a in enumerate(b.advantage):
        mine = np.flatnonzero(b.execution == i)
        s = np.exp(sum(base[t] - old[t] for t in mine) / n[i])
        masked = (a > 0 and s > 1 + config.clip_high) or (a < 0 and s < 1 - config.clip_low)
        for t in mine:
            if config.form == "token":
                w = min(np.exp(base[t] - mu[t]), config.cap)
                total -= (0.0 if masked else 1.0) * w * a * pi[t] / n[i]
            else:
                w = min(np.exp(old[t] - mu[t]), config.cap)
                r = s * np.exp(pi[t] - base[t])
                clipped = min(max(r, 1 - config.clip_low), 1 + config.clip_high)
                total -= w * min(r * a, clipped * a) / n[i]
    return total


def case(form, old_is, seed=0):
    config = Objective(form=form, old=old_is, clip_low=CLIP, clip_high=CLIP, cap=1.3)
    b = random_batch(seed, executions=9, spread=0.6)
    old = b.mu if old_is == "mu" else b.pi + np.random.default_rng(seed).normal(0, 0.1, len(b.pi))
    return config, b, old


@pytest.mark.parametrize(("form", "old_is"), FORMS)
def test_value_gradient_and_finite_differences(form, old_is):
    config, b, old = case(form, old_is)
    pi = torch.tensor(b.pi, requires_grad=True)
    targets = Targets(*(torch.tensor(x) for x in (b.mu, b.execution, b.advantage, b.n)))
    loss, sums = loss_sum(pi, torch.tensor(old), targets, config)
    loss.backward()
    arguments = (b.pi, old, b, config)
    assert loss.item() == pytest.approx(naive(b.pi, *arguments), abs=1e-10)

    s = np.exp(np.bincount(b.execution, b.pi - old) / b.n)
    masked = ((b.advantage > 0) & (s > 1 + CLIP)) | ((b.advantage < 0) & (s < 1 - CLIP))
    assert 0 < masked.sum() < len(masked)
    w = np.minimum(np.exp((b.pi if form == "token" else old) - b.mu), config.cap)
    assert form == "gspo" or 0 < (w == config.cap).sum() < len(w)
    printed = -((~masked * b.advantage * (s if form == "gspo" else 1.0) / b.n)[b.execution]) * w
    np.testing.assert_allclose(pi.grad.numpy(), printed, rtol=0, atol=1e-12)

    h = 1e-5
    for t in range(len(b.pi)):
        step = np.eye(1, len(b.pi), t)[0] * h
        slope = (naive(b.pi + step, *arguments) - naive(b.pi - step, *arguments)) / (2 * h)
        assert slope == pytest.approx(pi.grad[t].item(), abs=1e-8)
    assert sums["masked_up"].item() == (masked & (b.advantage > 0)).sum()
    assert sums["masked_down"].item() == (masked & (b.advantage < 0)).sum()


@pytest.mark.parametrize("form", ["token", "gspo"])
def test_at_the_very_edge_of_the_clip_range_nothing_is_masked(form):
    config = Objective(form=form, clip_low=0.5, clip_high=1.0)
    pi = torch.tensor([np.log(2.0), np.log(0.5)], requires_grad=True, dtype=torch.float64)
    targets = Targets(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([1.0, -1.0]).double(), torch.ones(2))
    loss_sum(pi, torch.zeros(2), targets, config)[0].backward()
    assert (pi.grad != 0).all()


def test_only_the_outward_direction_is_masked():
    config = Objective()
    for advantage, log_s, masked in (
        (1.0, 0.01, True),
        (1.0, -0.01, False),
        (-1.0, 0.01, False),
        (-1.0, -0.01, True),
    ):
        targets = Targets(
            torch.zeros(3), torch.zeros(3).long(), torch.tensor([advantage]).double(), torch.tensor([3])
        )
        pi = torch.full((3,), log_s, requires_grad=True)
        loss_sum(pi, torch.zeros(3), targets, config)[0].backward()
        assert bool((pi.grad == 0).all()) is masked


def sums_of(b, config, picked):
    """The sums of the executions that are picked, (E,) bool."""
    executions = np.flatnonzero(picked)
    mine = np.isin(b.execution, executions)
    targets = Targets(
        torch.tensor(b.mu[mine]),
        torch.tensor(np.searchsorted(executions, b.execution[mine])),
        torch.tensor(b.advantage[executions]),
        torch.tensor(b.n[executions]),
    )
    values = loss_sum(torch.tensor(b.pi[mine]), targets.mu, targets, config)[1]
    return {name: value.item() for name, value in values.items()}


def test_statistics_of_parts_add_up_to_those_of_the_whole():
    config, b, _ = case("token", "mu", seed=3)
    half = np.arange(len(b.n)) % 2 == 0
    whole = sums_of(b, config, half | True)
    parts = add_up(add_up({}, sums_of(b, config, half)), sums_of(b, config, ~half))
    assert parts == pytest.approx(whole, abs=1e-12)
    assert add_up(whole, {}) == whole
    means = finish(whole)
    gap = b.pi - b.mu
    log_s = np.bincount(b.execution, gap) / b.n
    assert means["gap_abs"] == pytest.approx(np.abs(gap).mean())
    assert means["gap_abs_max"] == pytest.approx(np.abs(gap).max())
    assert means["kl3"] == pytest.approx((np.exp(gap) - 1 - gap).mean())
    assert means["log_s_up"] == pytest.approx(log_s[b.advantage > 0].mean())
    assert means["log_s_down"] == pytest.approx(log_s[b.advantage < 0].mean())
    assert means["cap_rate"] == pytest.approx((np.exp(gap) > config.cap).mean())
    for sign, name in ((1, "cap_rate_up"), (-1, "cap_rate_down")):
        of_sign = (b.advantage * sign > 0)[b.execution]
        assert 0 < means[name] == pytest.approx((np.exp(gap) > config.cap)[of_sign].mean())
    assert 0 < means["gap_large"] == pytest.approx((np.abs(gap) > GAP_LARGE).mean())
    masked = ((b.advantage > 0) & (np.exp(log_s) > 1 + CLIP)) | (
        (b.advantage < 0) & (np.exp(log_s) < 1 - CLIP)
    )
    assert means["clip_rate"] == pytest.approx(masked.mean())
    assert means["masked_targets"] == pytest.approx(masked[b.execution].mean())
    assert finish({}) == {}


def test_mismatch_by_lag_is_that_of_the_targets_of_each_lag():
    config, b, _ = case("token", "mu", seed=3)
    third = np.arange(len(b.n)) % 3
    lags = {0: 2, 1: None, 2: 0}
    parts = [(lag, sums_of(b, config, third == k)) for k, lag in lags.items()]
    found = by_lag([*parts, (5, {}), (2, parts[0][1])])
    assert [entry["lag"] for entry in found] == [0, 2, None]  # what is unknown is said so, and comes last
    gap = (b.pi - b.mu)[third[b.execution] == 0]
    assert found[1]["targets"] == 2 * len(gap)
    assert found[1]["gap"] == pytest.approx(gap.mean())
    assert found[1]["gap_abs"] == pytest.approx(np.abs(gap).mean())
    assert found[1]["gap_large"] == pytest.approx((np.abs(gap) > GAP_LARGE).mean())
    assert found[1]["kl3"] == pytest.approx((np.exp(gap) - 1 - gap).mean())
    assert found[1]["gap_abs_max"] == pytest.approx(np.abs(gap).max())
    edges = [0.0, *GAP_EDGES]
    counts = {f"{b:g}": 2 * int(((np.abs(gap) > a) & (np.abs(gap) <= b)).sum()) for a, b in pairwise(edges)}
    assert found[1]["gap_counts"] == counts
    assert len([n for n in counts.values() if n]) > 2
    assert by_lag([]) == []


def test_a_difference_at_an_edge_is_counted_up_to_it():
    gaps = torch.tensor([0.0, *GAP_EDGES[:-1], 1.5], dtype=torch.float64)
    zeros = torch.zeros_like(gaps)
    targets = Targets(zeros, torch.zeros(len(gaps)).long(), torch.tensor([1.0]).double(), torch.tensor([12]))
    sums = {name: v.item() for name, v in loss_sum(-gaps, zeros, targets, Objective())[1].items()}
    assert list(by_lag([(0, sums)])[0]["gap_counts"].values()) == [2, *[1] * 10]
