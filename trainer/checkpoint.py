"""Checkpoints: weights and optimizer after a step, with what was consumed to get there.

    CHECKPOINTS/step-000012/state.safetensors   tensors of the backend, weights and optimizer
    CHECKPOINTS/step-000012/checkpoint.json     step, version, digest, groups consumed so far

Written whole or not at all; the last few are kept.  The log decides which one counts: the one of the
last committed step.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from lake import failure
from lake.durable import sync


class CheckpointError(RuntimeError):
    """A checkpoint that the log names is missing or holds something else."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it was read."""

    step: int
    policy_version: int
    digest: str
    consumed: tuple[str, ...]
    tensors: dict[str, Tensor]


def folder(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def save(
    root: Path,
    step: int,
    tensors: dict[str, Tensor],
    *,
    policy_version: int,
    digest: str,
    consumed: Sequence[str],
) -> Path:
    """Write the checkpoint of a step; an older one of the same step gives way.  Durable on return."""
    target = folder(root, step)
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, part / "state.safetensors")
    failure.reach("trainer.during-checkpoint")
    about = {"step": step, "policy_version": policy_version, "digest": digest, "consumed": list(consumed)}
    (part / "checkpoint.json").write_text(json.dumps(about))
    for path in (part / "state.safetensors", part / "checkpoint.json", part):
        sync(path)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    sync(root)
    return target


def load(root: Path, step: int, digest: str) -> Checkpoint:
    """The checkpoint of a step.  Raises CheckpointError where it is missing or has another digest."""
    path = folder(root, step)
    try:
        about = json.loads((path / "checkpoint.json").read_text())
        tensors = load_file(path / "state.safetensors")
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error}; the log has committed step {step}; "
            "`headrace replay RUN --check` makes its weights again from the log"
        ) from error
    if about["digest"] != digest:
        raise CheckpointError(f"{path} holds weights {about['digest'][:12]}, the log committed {digest[:12]}")
    return Checkpoint(step, about["policy_version"], about["digest"], tuple(about["consumed"]), tensors)


def tidy(root: Path, kept: int) -> None:
    """Remove half-written checkpoints and all but the newest `kept`."""
    for part in root.glob(".step-*.part-*"):
        shutil.rmtree(part, ignore_errors=True)
    for old in sorted(root.glob("step-*"))[:-kept]:
        shutil.rmtree(old)


def steps(root: Path) -> list[int]:
    """The steps that have a checkpoint, ascending."""
    return sorted(int(path.name.removeprefix("step-")) for path in root.glob("step-*"))
