"""How a step is computed: one small interface, several backends.

for part in micro_steps(packed, tokens_max):
    sums = add_up(sums, backend.accumulate(part))          weights constant, gradients add up
norm = backend.step(E, rate)      1/E once, clip, AdamW
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from trainer.objective import Sums
from trainer.packing import Packed


class BackendError(RuntimeError):
    """A step cannot be computed; the weights are those of before."""


class Backend(Protocol):
    """What the trainer's loop needs of a backend.  On one machine, equal calls give equal bits."""

    def accumulate(self, packed: Packed, old: Tensor | None = None) -> Sums:
        """Adds the gradient of the loss SUM of whole executions; returns its sums, {} for no rows."""

    def step(self, executions: int, learning_rate: float) -> float:
        """Gradients times 1/E, clipped, applied and cleared; returns their norm before clipping."""

    def logprobs(self, packed: Packed) -> Tensor:
        """(K,) log-probabilities of the targets under the current weights, without gradient."""

    def score(self, ids: np.ndarray) -> np.ndarray:
        """(n - 1,) log-probabilities of the ids (n,) after the first, of the logits as they are."""

    def state_dict(self) -> dict[str, Tensor]:
        """Weights and optimizer as flat named tensors."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes up a state_dict(); every name and shape must agree."""

    def weights_digest(self) -> str:
        """trainer.weights.digest of the weights."""

    def save(self, folder: Path, *, extra_files_from: Path | None = None) -> None:
        """The weights as a Hugging Face folder, whole or not at all."""
