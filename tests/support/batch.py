"""Targets of a batch without a model: random log-probabilities under two policies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Batch:
    pi: np.ndarray  # (K,) float64
    mu: np.ndarray  # (K,) float64
    execution: np.ndarray  # (K,) int64
    advantage: np.ndarray  # (E,) float64
    n: np.ndarray  # (E,) int64


def random_batch(seed: int, executions: int, *, spread: float, targets_max: int = 12) -> Batch:
    rng = np.random.default_rng(seed)
    n = rng.integers(1, targets_max, executions)
    mu = -rng.exponential(1.0, n.sum())
    return Batch(
        pi=np.minimum(mu + rng.normal(0, spread, n.sum()), -1e-3),
        mu=mu,
        execution=np.repeat(np.arange(executions), n),
        advantage=rng.normal(0, 1, executions),
        n=n,
    )
