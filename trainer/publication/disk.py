"""Weights by the disk: the engine reads the published folder."""

from __future__ import annotations

from trainer.publication.engine import Engine
from trainer.publication.folder import Folder


class Disk:
    """The folder must be where the engine can read it, under the same path."""

    name = "disk"

    def join(self, engine: Engine) -> None:
        """Nothing to prepare."""

    def send(self, engine: Engine, weights: Folder, version: int, *, flush: bool) -> None:
        """Raises PublishError."""
        engine.load(weights.path, str(version), flush=flush)

    def close(self) -> None:
        """Nothing to give up."""
