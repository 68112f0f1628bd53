"""Training again from the log: the planned steps, in order, on the same or on other rules.

Under the same rules every step's weights must have the digest that the log committed, bit for bit
(on a CPU, with the same software and number of threads).  Under other rules (another j_max,
objective, learning rate, ...) the same groups are trained in the same order, and the steps are
laid beside those of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lake.config import Config
from lake.store import Store
from trainer import checkpoint
from trainer.backends import Backend
from trainer.backends.choose import make_backend
from trainer.ledger import Ledger
from trainer.loader import Loader
from trainer.stepping import Step, StepResult

LOADED_AHEAD = 32


class ReplayError(RuntimeError):
    """A replay that cannot be: what differs from the run, and what to do."""


class StepsError(ValueError):
    """Steps that the log does not have: which it has."""


@dataclass(frozen=True)
class ReplayedStep:
    """A step as it was committed and as it came out again."""

    step: int
    equal: bool
    data_equal: bool
    digest_run: str
    digest_replay: str
    run: dict[str, Any]
    replay: dict[str, Any]


def wanted_steps(text: str | None, ledger: Ledger) -> range:
    """`a..b` (both included, b may be left out) of the committed steps; None: all of them.

    Raises StepsError for what is not there.
    """
    have = ledger.next_step
    if have == 0:
        raise StepsError("the log has no committed step yet; nothing to replay")
    if text is None:
        return range(have)
    first, dots, last = text.partition("..")
    try:
        a = int(first)
        b = int(last) if last else (have - 1 if dots else a)
    except ValueError as error:
        raise StepsError(f"--steps {text!r}: write a..b, for example 0..11") from error
    if not 0 <= a <= b < have:
        raise StepsError(f"--steps {text}: the log has committed steps 0..{have - 1}")
    return range(a, b + 1)


@dataclass(frozen=True)
class Plan:
    """What to replay and on what."""

    name: str
    config: Config  # with the settings of this replay
    store: Store
    set_name: str
    weights: Path  # version 0
    checkpoints: Path
    steps: range
    other_rules: bool


def start_of(steps: range, checkpoints: Path, ledger: Ledger) -> int:
    """The first step to compute: after the newest checkpoint before the range, or 0."""
    before = [s for s in checkpoint.steps(checkpoints) if s < steps.start and s in ledger.committed]
    return max(before, default=-1) + 1


def replay(plan: Plan, ledger: Ledger, watch: Callable[[int, int], None]) -> list[ReplayedStep]:
    """Compute the steps of a plan; `watch(done, all)` after each step.

    Raises ReplayError where the first weights are not those of the run, CheckpointError, LakeDisagrees.
    """
    config, steps = plan.config, plan.steps
    backend = make_backend(config, plan.weights)
    first = ledger.published[0].digest
    if backend.weights_digest() != first:
        raise ReplayError(
            f"{plan.weights} holds weights {backend.weights_digest()[:12]}, the run began with {first[:12]}; "
            "bitwise replay needs the same software and kind of processor (see the run.started event)"
        )
    start = start_of(steps, plan.checkpoints, ledger)
    if start:
        last = checkpoint.load(plan.checkpoints, start - 1, ledger.committed[start - 1].digest)
        backend.load_state_dict(last.tensors)
    loader = Loader(plan.store, plan.set_name, config.trainer.tokens_per_micro_step)
    found: list[ReplayedStep] = []
    try:
        loader.want([g for n in range(start, steps.stop) for g in ledger.planned[n].groups][:LOADED_AHEAD])
        for number in range(start, steps.stop):
            done = _step(plan, ledger, backend, loader, number)
            if number in steps:
                found.append(done)
            watch(number - start + 1, steps.stop - start)
    finally:
        loader.close()
    return found


def _step(plan: Plan, ledger: Ledger, backend: Backend, loader: Loader, number: int) -> ReplayedStep:
    planned, committed = ledger.planned[number], ledger.committed[number]
    loader.want([g for n in (number, number + 1) if n in ledger.planned for g in ledger.planned[n].groups])
    rate = plan.config.optimizer.rate(number) if plan.other_rules else planned.learning_rate
    step = Step(backend, rate)
    for group in planned.groups:
        step.add(loader.take(group))
    result = step.close({g: ledger.staleness(g, number) for g in planned.groups})
    return ReplayedStep(
        step=number,
        equal=result.digest == committed.digest,
        data_equal=tuple(g.digest for g in step.groups) == planned.digests,
        digest_run=committed.digest,
        digest_replay=result.digest,
        run={
            "loss": committed.loss,
            "gradient_norm": committed.gradient_norm,
            "executions": committed.executions,
            "tokens": committed.tokens,
            "targets": committed.targets,
            **json.loads(committed.statistics),
        },
        replay=numbers(result),
    )


def numbers(result: StepResult) -> dict[str, Any]:
    """The numbers of a step, under the names of `step.committed`."""
    flat = {k: v for k, v in asdict(result).items() if k not in ("digest", "statistics")}
    return {**flat, **result.statistics}


def keep(folder: Path, plan: Plan, settings: Sequence[str], steps: Sequence[ReplayedStep]) -> dict[str, Any]:
    """Write the outcome to `folder`/replay.json, whole or not at all; the same as a dictionary."""
    document = {
        "name": plan.name,
        "folder": str(folder),
        "settings": list(settings),
        "set": plan.set_name,
        "steps": [asdict(s) for s in steps],
    }
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / "replay.json.part"
    half.write_text(json.dumps(document))
    half.rename(folder / "replay.json")
    return document


def kept(root: Path) -> list[dict[str, Any]]:
    """The replays under a run's `replays` folder, by name."""
    return [json.loads(path.read_text()) for path in sorted(root.glob("*/replay.json"))]
