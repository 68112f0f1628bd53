"""Checkpoints: whole or not there, checked against the log, the last few kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer import checkpoint
from trainer.checkpoint import CheckpointError

TENSORS = {"w": torch.arange(6.0).view(2, 3), "optimizer.step.w": torch.tensor(3.0)}


def save(root: Path, step: int, digest: str = "d") -> Path:
    return checkpoint.save(root, step, TENSORS, policy_version=step + 1, digest=digest, consumed=["a", "b"])


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, 4)
    found = checkpoint.load(tmp_path, 4, "d")
    assert (found.step, found.policy_version, found.consumed) == (4, 5, ("a", "b"))
    assert all(torch.equal(found.tensors[name], t) for name, t in TENSORS.items())


def test_a_step_done_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    save(tmp_path, 4, "torn")
    save(tmp_path, 4, "d")
    assert checkpoint.load(tmp_path, 4, "d").digest == "d"
    assert checkpoint.steps(tmp_path) == [4]


def test_another_digest_than_the_logs_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 4, "other")
    with pytest.raises(CheckpointError, match="the log committed d"):
        checkpoint.load(tmp_path, 4, "d")


def test_a_missing_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="replay RUN --check"):
        checkpoint.load(tmp_path, 4, "d")


def test_only_the_newest_are_kept_and_torn_ones_go(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save(tmp_path, step)
    (tmp_path / ".step-000012.part-77").mkdir()
    checkpoint.tidy(tmp_path, kept=2)
    assert checkpoint.steps(tmp_path) == [10, 11]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000010", "step-000011"]
