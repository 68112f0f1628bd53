"""Ten steps on a fixed tiny batch: run in a process of its own, and as a golden test.

python -m tests.support.ten_steps [STEPS]      prints JSON: losses, norms, digest
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np

from lake.config import Objective, Optimizer
from tests.support.derived import random_tables
from trainer.backends.model import Shape
from trainer.backends.torch_backend import TorchBackend
from trainer.courier_start import fresh
from trainer.objective import add_up
from trainer.packing import Packed, micro_steps, pack

SHAPE = Shape(vocab_size=50, hidden_size=32, intermediate_size=48, head_dim=8, num_attention_heads=4,
              num_key_value_heads=2)  # fmt: skip
RATE = 1e-3


def make(objective: Objective | None = None, **options) -> TorchBackend:
    model = fresh(SHAPE, 0, embedding_std=0.02)
    wide = Objective(clip_low=0.2, clip_high=0.2)
    return TorchBackend(model, optimizer=Optimizer(weight_decay=0.01), objective=objective or wide, **options)


def batch(backend: TorchBackend, seed: int = 0, executions: int = 8, temperature_gap: float = 0.3) -> Packed:
    """Random trees whose mu lies about the backend's first policy."""
    t = random_tables(seed, executions=executions)
    p = pack(t.weights, t.segments, t.trees)
    noise = np.random.default_rng(seed).normal(0, temperature_gap, p.targets)
    return replace(p, mu=np.minimum(backend.logprobs(p).numpy() - noise, -1e-3).astype(np.float32))


def steps(backend: TorchBackend, packed: Packed, first: int, last: int, tokens_max: int = 200) -> dict:
    losses, norms = [], []
    for _ in range(first, last):
        sums: dict[str, float] = {}
        for part in micro_steps(packed, tokens_max):
            sums = add_up(sums, backend.accumulate(part))
        losses.append(sums["loss"] / packed.executions_valid)
        norms.append(backend.step(packed.executions_valid, RATE))
    return {"losses": losses, "norms": norms, "digest": backend.weights_digest()}


if __name__ == "__main__":
    backend = make()
    print(json.dumps(steps(backend, batch(backend), 0, int(sys.argv[1]))))
