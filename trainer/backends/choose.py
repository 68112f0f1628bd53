"""The backend that a configuration names."""

from __future__ import annotations

from pathlib import Path

from lake.config import Config
from trainer.backends import Backend


def make_backend(config: Config, weights: Path) -> Backend:
    """A backend that starts from the weights of a Hugging Face folder."""
    from trainer.backends.torch_backend import TorchBackend

    return TorchBackend(
        weights,
        optimizer=config.optimizer,
        objective=config.objective,
        temperature=config.rollout.temperature,
        threads=config.trainer.threads,
        tokens_max=config.trainer.tokens_per_micro_step,
        precision=config.precision,
    )
