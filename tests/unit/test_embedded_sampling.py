"""The law of the sampler, exactly where it can be said and by chi-square where it is random."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ingest.engines.embedded.sampling import draw, uniforms

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -2.0, 1.5, 0.2])


def sample(n: int, *, seed: int = 0, **how) -> tuple[np.ndarray, np.ndarray]:
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0} | how
    arrays = {f"{k}_R": np.full(n, v, np.int64 if k == "top_k" else np.float64) for k, v in settings.items()}
    u = uniforms(np.full(n, seed, np.uint64), np.arange(n).astype(np.uint64))
    return draw(LOGITS.repeat(n, 1), uniform_R=u, **arrays)


def law(temperature: float, keep: list[int]) -> np.ndarray:
    p = (LOGITS.double() / temperature).softmax(-1).numpy()
    kept = np.zeros_like(p)
    kept[keep] = p[keep]
    return kept / kept.sum()


@pytest.mark.parametrize(
    ("how", "keep"),
    [
        ({}, list(range(8))),
        ({"temperature": 0.5}, list(range(8))),
        ({"temperature": 2.0}, list(range(8))),
        ({"top_k": 3}, [0, 6, 1]),
        ({"top_p": 0.6}, [0, 6]),  # 0.39 + 0.24 reach 0.6
        ({"min_p": 0.3}, [0, 6, 1]),  # e**-1 is above 0.3, e**-1.5 below
        ({"top_k": 5, "min_p": 0.1, "top_p": 0.95, "temperature": 1.5}, [0, 6, 1, 2, 7]),
    ],
)
def test_frequencies_follow_the_law(how, keep):
    n = 40_000
    tokens, logps = sample(n, **how)
    expected = law(how.get("temperature", 1.0), keep) * n
    counts = np.bincount(tokens, minlength=8)
    assert counts[expected == 0].sum() == 0
    seen = expected > 0
    chi2 = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    # the 0.9999 quantile of chi-square with 7 degrees of freedom is 29.9; the seed is fixed
    assert chi2 < 30
    unfiltered = (LOGITS / how.get("temperature", 1.0)).log_softmax(-1).numpy()
    np.testing.assert_allclose(logps, unfiltered[tokens], atol=1e-6)


def test_greedy_is_raw():
    tokens, logps = sample(3, temperature=0.0)
    assert tokens.tolist() == [0, 0, 0]
    np.testing.assert_allclose(logps, LOGITS.log_softmax(-1)[0].numpy(), atol=1e-6)


def test_a_word_of_probability_0_is_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(3, 1)
    ones = np.ones(3)
    edges = np.array([0.0, 0.5, 1 - 2**-53])
    tokens, _ = draw(
        logits,
        temperature_R=ones,
        top_p_R=ones,
        top_k_R=-ones.astype(np.int64),
        min_p_R=0 * ones,
        uniform_R=edges,
    )
    assert tokens.tolist() == [1, 3, 3]


def test_rows_do_not_disturb_each_other():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 30, generator=g)
    rng = np.random.default_rng(0)
    arrays = {
        "temperature_R": rng.choice([0.0, 0.7, 1.0], 50),
        "top_p_R": rng.choice([0.5, 1.0], 50),
        "top_k_R": rng.choice([-1, 5], 50),
        "min_p_R": rng.choice([0.0, 0.1], 50),
        "uniform_R": rng.random(50),
    }
    together, logp = draw(logits.clone(), **arrays)
    for i in range(50):
        alone, one = draw(logits[i : i + 1].clone(), **{k: v[i : i + 1] for k, v in arrays.items()})
        assert alone[0] == together[i]
        np.testing.assert_allclose(one[0], logp[i], atol=1e-6)


def test_uniforms_are_uniform_and_differ_by_key_and_count():
    u = uniforms(
        np.repeat(np.arange(200, dtype=np.uint64), 200), np.tile(np.arange(200, dtype=np.uint64), 200)
    )
    assert len(np.unique(u)) == u.size
    counts = np.bincount((u * 100).astype(int), minlength=100)
    assert ((counts - 400) ** 2 / 400).sum() < 160  # the 0.9999 quantile for 99 degrees of freedom
