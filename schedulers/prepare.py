"""What a new run of training needs: tasks and the first policy.  Doing it twice changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lake.beginning import copy_model
from lake.config import Config, ConfigError
from lake.layout import Run
from lake.parentage import die_with_parent
from schedulers.policies.boundary import groups_in_run


def _python(*arguments: str) -> bytes:
    """What a module of ours prints.  Raises RuntimeError with the end of its complaint where it fails."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        env=environment,
        capture_output=True,
        preexec_fn=die_with_parent,
    )
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip()[-600:]
        raise RuntimeError(f"python -m {' '.join(arguments)} ended with status {done.returncode}: {tail}")
    return done.stdout


def tasks(run: Run, config: Config) -> list[str]:
    """The run's tasks as JSON text, one a group; written once to tasks.jsonl.

    Raises ConfigError where the file of tasks has fewer than the run hands out.
    """
    path, count = run.tasks_file, groups_in_run(config)
    lines = path.read_bytes() if path.exists() else _new_tasks(config, count)
    found = lines.decode().removesuffix("\n").split("\n")  # JSON text may hold other ends of lines
    if len(found) < count:
        raise ConfigError(
            f"{path} has {len(found)} tasks, the run hands out {count}; lower steps, or add tasks"
        )
    if not path.exists():
        half = path.with_suffix(".part")
        half.write_bytes(lines)
        half.rename(path)
    return found


def _new_tasks(config: Config, count: int) -> bytes:
    """The tasks of a new run as lines.  Raises ConfigError for a file of tasks that cannot be used."""
    if config.rollout.harness != "command":
        return _python("ingest.courier", "tasks", "--seed", str(config.seed), "--count", str(count))
    if not config.rollout.tasks:
        raise ConfigError("rollout.tasks is empty; the harness `command` needs a file of JSON lines")
    try:
        return _python("ingest.rollouts.tasks", config.rollout.tasks)
    except RuntimeError as error:
        raise ConfigError(f"rollout.tasks: {error}") from error


def first_policy(run: Run, config: Config, say: Callable[[str], None], folder: Path | None = None) -> Path:
    """The weights of version 0: a Hugging Face folder copied, or the recipe `courier` followed.

    `folder` overrides where they go (a replay that makes them again).
    """
    target = folder or run.weights(0)
    if target.exists():
        return target
    model = config.model
    if model.weights != "courier":
        return copy_model(Path(model.weights), target, setting="model.weights")
    say("making the first policy: demonstrations and a short supervised warm-up (about half a minute)")
    work = target.parent / "warmup"
    executions = model.warmup_steps * model.warmup_executions_per_step
    seed = str(config.seed)
    _python(
        "ingest.courier", "prepare", "--folder", str(work), "--seed", seed, "--executions", str(executions)
    )
    _python(
        "trainer.warmup",
        *("--demonstrations", str(work / "demonstrations.parquet"), "--tokenizer", str(work)),
        *("--out", str(target), "--seed", seed, "--steps", str(model.warmup_steps)),
        *("--executions-per-step", str(model.warmup_executions_per_step)),
        *("--learning-rate", str(model.warmup_learning_rate)),
        *("--threads", str(model.warmup_threads)),
    )
    shutil.rmtree(work)
    return target
