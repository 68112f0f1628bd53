"""The torch backend: equal to a naive computation, and to itself bit by bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lake.config import Objective, Optimizer
from tests.support.derived import random_tables
from tests.support.ten_steps import RATE, SHAPE, batch, make, steps
from trainer import weights
from trainer.backends import Backend, BackendError
from trainer.backends.rows import buckets
from trainer.backends.torch_backend import TorchBackend
from trainer.courier_start import fresh
from trainer.packing import micro_steps, pack


def naive_loss(model, tables, config, temperature):
    """Path by path and token by token, in float64, from the tables' naive reading."""
    total = torch.zeros((), dtype=torch.float64)
    for name in sorted(tables.valid):
        a = tables.advantage[name]
        paths = [path for (owner, _), path in sorted(tables.paths.items()) if owner == name]
        pi, mu = [], []
        for path in paths:
            logits = model.logits(model.forward_hidden(torch.tensor([path.ids])))[0] / temperature
            logp = logits.log_softmax(-1)
            pi += [logp[column - 1, path.ids[column]] for column in path.at]
            mu += path.mu
        n = len(pi)
        s = np.exp(sum(float(x.detach()) - y for x, y in zip(pi, mu, strict=True)) / n)
        masked = (a > 0 and s > 1 + config.clip_high) or (a < 0 and s < 1 - config.clip_low)
        for x, y in zip(pi, mu, strict=True):
            w = min(np.exp(float(x.detach()) - y), config.cap)
            if config.form == "token":
                total = total - (0.0 if masked else 1.0) * w * a * x / n
            else:  # old = mu: w is 1
                edge = min(max(s, 1 - config.clip_low), 1 + config.clip_high)
                total = total - a / n * (edge if masked else s * (x - x.detach()).exp())
    return total


@pytest.mark.parametrize(("form", "temperature"), [("token", 1.0), ("token", 0.7), ("gspo", 1.3)])
def test_loss_and_gradients_equal_the_naive_ones(form, temperature):
    tables = random_tables(11, executions=16)
    config = Objective(form=form, clip_low=0.01, clip_high=0.01)
    b = TorchBackend(
        fresh(SHAPE, 3, embedding_std=0.02),
        optimizer=Optimizer(),
        objective=config,
        temperature=temperature,
        tokens_max=10**6,
    )
    p = pack(tables.weights, tables.segments, tables.trees)
    sums = b.accumulate(p)
    assert sums["targets"] == p.targets
    assert 0 < sums["masked_up"] + sums["masked_down"] < len(p.execution_ids)
    model = fresh(SHAPE, 3, embedding_std=0.02).double()
    loss = naive_loss(model, tables, config, temperature)
    loss.backward()
    assert sums["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for (name, p32), p64 in zip(b.model.named_parameters(), model.parameters(), strict=True):
        gap = (p32.grad - p64.grad).norm() / p64.grad.norm()
        assert gap < 1e-4, name


def test_temperature_scales_the_distribution_that_is_scored():
    b, hot = make(), make(temperature=2.0)
    p = batch(b)
    (bucket, *_) = buckets(p)
    logits = b.model.logits(b.model.forward_hidden(torch.from_numpy(bucket.ids_BT)))
    places = logits.flatten(0, 1)[torch.from_numpy(bucket.place)]
    wanted = (places / 2.0).log_softmax(-1).gather(1, torch.from_numpy(bucket.token)[:, None])[:, 0]
    torch.testing.assert_close(
        hot.logprobs(p)[torch.from_numpy(bucket.target)], wanted.detach(), rtol=0, atol=1e-5
    )
    assert (hot.logprobs(p) - b.logprobs(p)).abs().max() > 0.1
    with pytest.raises(ValueError, match="temperature is 0"):
        make(temperature=0.0)


def test_buckets_hold_every_row_and_target_once_and_little_padding():
    b = make()
    p = batch(b, 5, executions=30)
    seen, padded = [], 0
    for bucket in buckets(p):
        seen += bucket.target.tolist()
        padded += bucket.ids_BT.size
        flat = bucket.ids_BT.reshape(-1)
        row, column = p.target_row[bucket.target], p.target_column[bucket.target]
        assert (p.ids[p.row_start[row] + column] == bucket.token).all()
        assert (flat[bucket.place] == p.ids[p.row_start[row] + column - 1]).all()
    assert sorted(seen) == list(range(p.targets))
    assert p.tokens - p.rows <= padded <= 1.25 * p.tokens


def test_micro_steps_change_gradients_by_float_noise_alone():
    whole, parts = make(), make()
    p = batch(whole)
    whole.accumulate(p)
    slices = micro_steps(p, p.tokens // 3)
    assert len(slices) >= 3
    for part in slices:
        parts.accumulate(part)
    for (name, a), c in zip(whole.model.named_parameters(), parts.model.parameters(), strict=True):
        assert (a.grad - c.grad).norm() <= 1e-5 * a.grad.norm(), name


def test_two_fresh_processes_hold_equal_bits(tmp_path):
    found = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.ten_steps", "4"],
            env={"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(json.loads(done.stdout))
    backend = make()
    assert found[0] == found[1] == steps(backend, batch(backend), 0, 4)


def test_a_resumed_run_equals_an_undisturbed_one_bit_by_bit(tmp_path):
    straight, first, second = make(), make(), make()
    p = batch(straight)
    whole = steps(straight, p, 0, 6)
    begin = steps(first, p, 0, 3)
    save_file(first.state_dict(), tmp_path / "state.safetensors")
    second.load_state_dict(load_file(tmp_path / "state.safetensors"))
    end = steps(second, p, 3, 6)
    assert begin["losses"] + end["losses"] == whole["losses"]
    assert end["digest"] == whole["digest"]
    assert weights.digest(second.state_dict()) == weights.digest(straight.state_dict())
    state = straight.state_dict()
    steps(straight, p, 6, 7)
    assert weights.digest(state) == weights.digest(second.state_dict())  # a copy, not a view


def test_a_state_that_does_not_fit_is_refused_whole():
    b = make()
    before = b.state_dict()
    wrong = b.state_dict()
    wrong["model.norm.weight"] = torch.ones(3)
    for state in (wrong, {k: v for k, v in before.items() if k != "optimizer.step.model.norm.weight"}):
        with pytest.raises(BackendError, match=r"model\.norm\.weight"):
            b.load_state_dict({k: v + 1 if k != "model.norm.weight" else v for k, v in state.items()})
        assert weights.digest(b.state_dict()) == weights.digest(before)


def test_adamw_is_torchs():
    ours, theirs = make(), fresh(SHAPE, 0, embedding_std=0.02)
    p = batch(ours)
    optimizer = torch.optim.AdamW(
        theirs.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01
    )
    for _ in range(3):
        ours.accumulate(p)
        for a, c in zip(ours.model.parameters(), theirs.parameters(), strict=True):
            c.grad = a.grad / p.executions_valid
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        ours.step(p.executions_valid, RATE)
        for a, c in zip(ours.model.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-8)


def test_executions_of_advantage_zero_count_in_e_alone():
    """A step in which all is flat is a step of zero gradient, as if its rows had been computed."""
    b, computed = make(), make()
    p = batch(b)
    for each in (b, computed):
        each.accumulate(p)
        each.step(p.executions_valid, RATE)
    flat = replace(p, advantage=np.zeros_like(p.advantage))
    computed.accumulate(flat)
    assert b.step(p.executions_valid, RATE) == computed.step(p.executions_valid, RATE) == 0.0
    assert b.weights_digest() == computed.weights_digest()


def test_a_gradient_that_is_not_finite_is_not_applied():
    b = make()
    p = batch(b)
    before = weights.digest(b.state_dict())
    b.accumulate(replace(p, advantage=np.full_like(p.advantage, np.inf)))
    with pytest.raises(BackendError, match="gradient norm of"):
        b.step(p.executions_valid, RATE)
    with pytest.raises(BackendError, match="-1 executions"):
        b.step(-1, RATE)
    assert weights.digest(b.state_dict()) == before
    assert all((q.grad == 0).all() for q in b.model.parameters())


def test_it_starts_from_a_folder_and_saves_one(tmp_path):
    b: Backend = make()
    b.save(tmp_path / "v0")
    again = TorchBackend(tmp_path / "v0", optimizer=Optimizer(), objective=Objective())
    assert again.weights_digest() == b.weights_digest()
    assert set(again.state_dict()) == set(b.state_dict())


def test_making_a_backend_does_not_load_torchs_compiler():
    code = (
        "import sys; from tests.support.ten_steps import make, batch, steps; b = make(); "
        "steps(b, batch(b), 0, 1); sys.exit('sympy' in sys.modules or 'torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
