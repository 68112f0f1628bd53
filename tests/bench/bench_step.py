"""A training step on the demo's shape: `python -m tests.bench.bench_step`.

85 rows or so, 8.7k tokens, a third of them targets, the demo's model; once as a whole, and group by group
as the streaming loop does it.  Processor time of one thread, best of several.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lake.config import Objective, Optimizer
from trainer.backends.model import Shape
from trainer.backends.torch_backend import TorchBackend
from trainer.courier_start import fresh
from trainer.packing import Packed, join

COMMAND = "python -m tests.bench.bench_step"
VOCABULARY = 388
BEST_OF = 5
ROWS = (
    (150, 230),
    (60, 100),
    (40, 70),
)  # an execution's paths: main, summary, clerk (tokens, from and below)


def group(seed: int, executions: int = 7) -> Packed:
    """One group of the demo's row lengths; 7 of its 8 executions have a gradient, as is usual there."""
    rng = np.random.default_rng(seed)
    lengths = np.stack([rng.integers(low, high, executions) for low, high in ROWS], 1).reshape(-1)
    targets = lengths // 3
    row = np.repeat(np.arange(len(lengths)), targets)
    column = np.concatenate(
        [
            np.sort(rng.choice(np.arange(1, n), k, replace=False))
            for n, k in zip(lengths.tolist(), targets.tolist(), strict=True)
        ]
    )
    return Packed(
        execution_ids=tuple(f"g{seed}/{e}" for e in range(executions)),
        advantage=rng.normal(size=executions),
        n_targets=targets.reshape(executions, -1).sum(1),
        executions_valid=executions + 1,
        row_execution=(np.arange(len(lengths)) // len(ROWS)).astype(np.int32),
        row_path=(np.arange(len(lengths)) % len(ROWS)).astype(np.int32),
        row_start=np.r_[0, np.cumsum(lengths)],
        ids=rng.integers(0, VOCABULARY, lengths.sum()).astype(np.int32),
        target_row=row.astype(np.int32),
        target_column=column.astype(np.int32),
        mu=rng.normal(-6.0, 0.1, len(row)).astype(np.float32),
    )


def _measure(backend: TorchBackend, parts: list[Packed]) -> float:
    """Best tokens/s of a whole step."""
    took = []
    for _ in range(1 + BEST_OF):
        began = time.process_time()
        for part in parts:
            backend.accumulate(part)
        backend.step(sum(part.executions_valid for part in parts), 1e-4)
        took.append(time.process_time() - began)
    return sum(part.tokens for part in parts) / min(took[1:])


def run() -> list[dict[str, Any]]:
    backend = TorchBackend(
        fresh(Shape(vocab_size=VOCABULARY), 0), optimizer=Optimizer(), objective=Objective(), threads=1
    )
    groups = [group(seed) for seed in range(4)]
    rows = []
    for name, what, parts in (
        ("step", "a step of four groups at once", [join(groups)]),
        ("step-groups", "a step group by group", groups),
    ):
        tokens = sum(part.tokens for part in parts)
        rows.append(
            {
                "id": name, "what": f"{what}, {tokens} tokens in {sum(p.rows for p in parts)} rows",
                "value": _measure(backend, parts), "unit": "token/s a core", "bound": None, "holds": None,
                "command": COMMAND,
            }
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    from tests.bench.__main__ import show

    show(run())
