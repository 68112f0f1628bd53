"""A run's folder and its first event: what every command that begins a run does.  Twice changes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import uuid
from pathlib import Path

import msgspec

from lake.config import Config, ConfigError
from lake.events import RunStarted
from lake.layout import Run
from lake.log import Log, now_us

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
    if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise ConfigError(f"{run.path} exists and is not a run; give another folder")
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


WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx")


def copy_model(source: Path, target: Path, *, setting: str, with_weights: bool = True) -> Path:
    """A Hugging Face folder copied to `target`, whole or not at all; nothing where it is there already.

    `with_weights` false leaves the large files out: a proxy needs tokenizer and template only.  Raises
    ConfigError, with the name of the `setting`, where there is no model.
    """
    if target.exists():
        return target
    if not (source / "config.json").is_file():
        raise ConfigError(f"{setting}: {source} holds no config.json; give a Hugging Face folder")
    half = target.with_name(target.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    left_out = None if with_weights else shutil.ignore_patterns(*WEIGHT_FILES)
    shutil.copytree(source, half, ignore=left_out)
    half.rename(target)
    return target
