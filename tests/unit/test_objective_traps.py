"""The seven traps of the objective, each by its name in design note objective.md."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lake.config import Objective, Optimizer
from tests.support.batch import random_batch
from tests.support.derived import random_tables
from trainer.backends.model import Shape
from trainer.backends.torch_backend import TorchBackend
from trainer.courier_start import fresh
from trainer.objective import Targets, finish, log_ratio_sums, loss_sum, outward
from trainer.packing import join, micro_steps, pack

SHAPE = Shape(vocab_size=50, hidden_size=32, intermediate_size=48, head_dim=8, num_attention_heads=4,
              num_key_value_heads=2)  # fmt: skip
WIDE = Objective(clip_low=0.2, clip_high=0.2)


def backend(objective=WIDE, **options):
    model = fresh(SHAPE, 0, embedding_std=0.02)
    return TorchBackend(model, optimizer=Optimizer(), objective=objective, **options)


def near_policy(b, seeds, spread=0.4):
    """A batch whose mu lies about the backend's own log-probabilities, so that ratios are near 1."""
    parts = []
    for seed in seeds:
        t = random_tables(seed, executions=5, group=f"g{seed}")
        parts.append(pack(t.weights, t.segments, t.trees))
    p = join(parts)
    noise = np.random.default_rng(seeds[0]).normal(0.2, spread, p.targets)
    return replace(p, mu=np.minimum(b.logprobs(p).numpy() - noise, -1e-3).astype(np.float32))


def gradients(b):
    return {name: p.grad.clone() for name, p in b.model.named_parameters()}


def tensors(b):
    return Targets(*(torch.tensor(x) for x in (b.mu, b.execution, b.advantage, b.n)))


def largest_gap(a, b):
    return max(float((a[n] - b[n]).norm() / a[n].norm()) for n in a if a[n].norm() > 0)


@pytest.mark.parametrize("form", ["token", "gspo"])
def test_trap_1_the_ratio_spans_all_paths_even_in_different_passes(form):
    config = Objective(form=form, clip_low=0.2, clip_high=0.2)
    whole, apart = backend(config), backend(config, tokens_max=1)  # every row in a pass of its own
    p = near_policy(whole, [0, 1])
    a, b = whole.accumulate(p), apart.accumulate(p)
    assert 0 < a["masked_up"] + a["masked_down"] < len(p.execution_ids)
    assert a == pytest.approx(b, rel=1e-5)
    assert largest_gap(gradients(whole), gradients(apart)) < 1e-5
    # The trap itself: paths taken for executions of their own give other masks, hence another gradient.
    s_of_path = np.bincount(p.target_row, whole.logprobs(p).numpy() - p.mu) / np.bincount(p.target_row)
    s_of_execution = np.bincount(p.target_execution, whole.logprobs(p).numpy() - p.mu) / p.n_targets
    by_path = outward(torch.tensor(s_of_path), torch.tensor(p.advantage[p.row_execution]), config)
    by_execution = outward(torch.tensor(s_of_execution), torch.tensor(p.advantage), config)
    assert not torch.equal(by_path, by_execution[torch.from_numpy(p.row_execution).long()])


def test_trap_2_recomputed_old_kills_the_clip_and_mu_carries_the_mismatch():
    b = random_batch(0, 12, spread=0.5)
    pi = torch.tensor(b.pi, requires_grad=True)
    _, dead = loss_sum(pi, pi.detach(), tensors(b), Objective(old="recomputed"))
    assert dead["masked_up"] == dead["masked_down"] == dead["log_s_up"] == dead["log_s_down"] == 0
    _, alive = loss_sum(pi, torch.tensor(b.mu), tensors(b), Objective())
    assert alive["masked_up"] > 0
    assert alive["masked_down"] > 0
    means, log_s = (
        finish({n: float(v) for n, v in alive.items()}),
        np.bincount(b.execution, b.pi - b.mu) / b.n,
    )
    assert means["log_s_up"] == pytest.approx(log_s[b.advantage > 0].mean())
    assert means["log_s_down"] == pytest.approx(log_s[b.advantage < 0].mean())


def test_trap_2_the_backend_recomputes_old_at_the_batchs_first_weights():
    config = Objective(form="gspo", old="recomputed", clip_low=0.01, clip_high=0.01)
    b = backend(config)
    p = near_policy(b, [2, 3])
    first = b.logprobs(p)
    given, own = backend(config), backend(config)
    sums = given.accumulate(p, first), own.accumulate(p)
    assert sums[0] == pytest.approx(sums[1], rel=1e-6, abs=1e-6)
    assert largest_gap(gradients(given), gradients(own)) < 1e-6
    assert abs(sums[1]["log_s_up"]) + abs(sums[1]["log_s_down"]) < 1e-6
    given.step(p.executions_valid, 1e-2)  # a second step on the same batch: now old is not pi
    again = given.accumulate(p, first)
    assert abs(again["log_s_up"]) > 1e-3


def test_trap_3_gradients_are_sums_and_one_over_e_comes_once():
    """Unequal shares add up to the whole batch, and clipping sees the gradient after 1/E."""
    whole, shares = backend(), backend()
    p = near_policy(whole, [4, 5, 6])
    parts = micro_steps(p, int(p.tokens * 0.45))
    assert len(parts) >= 3
    assert len({len(part.execution_ids) for part in parts}) > 1
    whole.accumulate(p)
    for part in parts:
        shares.accumulate(part)
    total = gradients(whole)
    assert largest_gap(total, gradients(shares)) < 1e-5
    norm = torch.stack([g.norm() for g in total.values()]).norm().item()
    assert whole.step(p.executions_valid, 1e-3) == pytest.approx(norm / p.executions_valid, rel=1e-5)
    assert shares.step(sum(part.executions_valid for part in parts), 1e-3) == pytest.approx(
        norm / p.executions_valid, rel=1e-5
    )
    assert all((g == 0).all() for g in gradients(whole).values())


def test_trap_4_token_weights_are_not_averaged_over_the_sequence():
    """Each token keeps its own truncated weight; a mean over the sequence would make them equal."""
    b = random_batch(5, 4, spread=0.7)
    pi = torch.tensor(b.pi, requires_grad=True)
    config = Objective(clip_low=0.99, clip_high=50.0)  # nothing masked
    loss_sum(pi, torch.tensor(b.mu), tensors(b), config)[0].backward()
    each = -pi.grad.numpy() / (b.advantage / b.n)[b.execution]
    np.testing.assert_allclose(each, np.minimum(np.exp(b.pi - b.mu), config.cap), rtol=1e-12)
    for i in range(4):
        assert (b.n[i] == 1) or np.ptp(each[b.execution == i]) > 0.1


def test_trap_5_a_masked_prefix_is_outside_loss_and_ratio():
    """A path's tokens that an earlier path owns: their log-probabilities are not even read."""
    b = backend()
    t = random_tables(7, executions=8)
    p = pack(t.weights, t.segments, t.trees)
    shared = [s for s in t.segments.to_pylist() if s["sampled"] and not s["target"]]
    assert any(s["execution_id"] in p.execution_ids for s in shared)
    sampled_once = t.segments.filter(t.segments["target"])
    mine = [s for s in sampled_once.to_pylist() if s["execution_id"] in p.execution_ids]
    assert p.targets == sum(s["length"] for s in mine) == p.n_targets.sum()
    pi = b.logprobs(p).double()
    known = [torch.tensor(x) for x in (p.mu, p.target_execution.astype(np.int64), p.advantage, p.n_targets)]
    ratio = log_ratio_sums(pi, known[0], Targets(*known))
    by_hand = dict.fromkeys(p.execution_ids, 0.0)
    for s in mine:
        name, path = s["execution_id"], t.paths[s["execution_id"], s["path"]]
        ids = torch.tensor([path.ids])
        logits = b.model.logits(b.model.forward_hidden(ids))[0].double().log_softmax(-1)
        for column in range(s["depth_start"], s["depth_start"] + s["length"]):
            mu = path.mu[path.at.index(column)]
            by_hand[name] += logits[column - 1, path.ids[column]].item() - mu
    assert ratio.tolist() == pytest.approx(list(by_hand.values()), rel=1e-5)


def test_trap_6_half_a_million_terms_are_summed_wide():
    """A mean of 0.0051 over 5e5 terms must be told from 0.005; float16 or bfloat16 sums lose it."""
    n = 500_000
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, n)
    for mean, masked in ((0.0051, True), (0.0049, False)):
        mu = torch.tensor(-rng.exponential(1.0, n), dtype=torch.float32)
        pi = (mu.double() + torch.tensor(noise - noise.mean() + np.log1p(mean))).float().requires_grad_()
        targets = Targets(
            mu, torch.zeros(n, dtype=torch.long), torch.ones(1, dtype=torch.float64), torch.tensor([n])
        )
        assert log_ratio_sums(pi, mu, targets).dtype == torch.float64
        _, sums = loss_sum(pi, mu, targets, Objective())
        assert bool(sums["masked_up"] == 1) is masked


def test_trap_7_nothing_valid_moves_nothing():
    b = backend()
    p = near_policy(b, [0])
    b.accumulate(p)
    b.step(p.executions_valid, 1e-2)  # moments are not zero: an AdamW step would move the weights
    before = b.state_dict()
    t = random_tables(0)
    none = pack(t.weights.slice(0, 0), t.segments, t.trees)
    (part,) = micro_steps(none, 100)
    assert b.accumulate(part) == {}
    assert b.step(none.executions_valid, 1e-2) == 0.0
    after = b.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)
