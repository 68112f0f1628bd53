"""A new run's folder: configuration, log, tasks and the first policy.  Doing it twice changes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from lake.config import Config, ConfigError
from lake.events import RunStarted
from lake.layout import Run
from lake.log import Log, now_us
from lake.processes import die_with_parent
from schedulers.policies.boundary import groups_in_run

SOFTWARE = ("headrace", "torch", "numpy", "duckdb", "pyarrow", "deltalake", "kafka-python")


def resolve(config: Config, run: Run) -> Config:
    """The configuration with what only this run can know: topics of its own on a shared broker."""
    if config.log.startswith("kafka://") and "/" not in config.log.removeprefix("kafka://"):
        name = f"headrace-{run.path.name}-{uuid.uuid4().hex[:8]}"
        return msgspec.structs.replace(config, log=f"{config.log}/{name}?partitions={config.partitions}")
    return config


def open_folder(run: Run, config: Config) -> Config:
    """Make the folder, or go on in it with the configuration it was made with.

    Raises ConfigError where the folder holds something else.
    """
    if run.config_file.exists():
        return run.config()
    if run.path.exists() and any(run.path.iterdir()):
        raise ConfigError(f"{run.path} exists and is not a run; give another folder with --run")
    run.path.mkdir(parents=True, exist_ok=True)
    config = resolve(config, run)
    half = run.config_file.with_suffix(".part")
    half.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    half.rename(run.config_file)
    return config


def versions() -> dict[str, str]:
    """What a replay needs to know of this machine: bitwise equality holds for equal software."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in SOFTWARE:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def announce(log: Log, run: Run, config: Config) -> None:
    """The run's first event (repeated on each start; readers drop repeats by its id)."""
    log.append(
        [
            RunStarted(
                time_us=now_us(),
                run=run.path.name,
                config=msgspec.json.encode(config).decode(),
                software=json.dumps(versions()),
            )
        ]
    )


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
    """The run's tasks as JSON text, one a group; written once to tasks.jsonl."""
    path = run.path / "tasks.jsonl"
    if not path.exists():
        count = groups_in_run(config)
        lines = _python("ingest.courier", "tasks", "--seed", str(config.seed), "--count", str(count))
        half = path.with_suffix(".part")
        half.write_bytes(lines)
        half.rename(path)
    return path.read_text().splitlines()


def first_policy(run: Run, config: Config, say: Callable[[str], None], folder: Path | None = None) -> Path:
    """The weights of version 0: a Hugging Face folder copied, or the recipe `courier` followed.

    `folder` overrides where they go (a replay that makes them again).
    """
    target = folder or run.weights(0)
    if target.exists():
        return target
    model = config.model
    if model.weights != "courier":
        source = Path(model.weights)
        if not (source / "config.json").is_file():
            raise ConfigError(f"model.weights: {source} holds no config.json; give a Hugging Face folder")
        half = target.with_name(target.name + ".part")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(source, half)
        half.rename(target)
        return target
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
