"""SGLang's server: which interpreter has it, and the words that start it.

On a CPU its kernels are plain torch, and what needs a GPU is switched off; on a GPU its own defaults hold.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

from lake.config import Config, ConfigError
from lake.processes import free_port

MODULE = "sglang.launch_server"
INSTALLED = (
    Path(__file__).resolve().parent.parent / "infra" / "sglang" / ".sglang" / "venv" / "bin" / "python"
)
"""Of a checkout: where `infra/sglang/sglang.sh setup` puts it."""

GPU = Path("/dev/nvidiactl")

MEMORY_SHARE = "0.7"
"""Of the machine's memory, at most, for everything in it; a server whose neighbours took more while it starts
gives up.  What it takes itself is bounded by --max-total-tokens."""

CONTEXT_KEPT = 6
"""Tokens of its context that a server (0.5.23) takes no prompt into, and an answer into four of them only: it
is given so many more than `engine.context_tokens`, and no position lies beyond what the proxy asks for."""

PREFIXES_PER_CALL = 2
"""Keys and values of so many whole contexts a running call: its own, and one that may be asked for again."""

REGISTER = "--remote-instance-weight-loader-start-seed-via-transfer-engine"
"""Lets Mooncake's Transfer Engine write into its tensors (trainer.publication.mooncake)."""

READY_S_MAX = 1200.0
"""From its start until it takes calls.  A large model is read from disk, kernels are compiled and CUDA graphs
captured: some ten minutes; a small one took 15 s on a quiet CPU, 4 minutes among six others.  One that fails
ends and is seen at once, so this only bounds one that hangs."""


def interpreter(config: Config) -> str:
    """The Python that has SGLang: `engine.python`, else ours, else that of infra/sglang/sglang.sh.

    Raises ConfigError where there is none.
    """
    if given := config.engine.python:
        if not os.access(given, os.X_OK):
            raise ConfigError(f"engine.python is {given}, which is no program; give a Python that has SGLang")
        return given
    if importlib.util.find_spec("sglang"):
        return sys.executable
    if os.access(INSTALLED, os.X_OK):
        return str(INSTALLED)
    raise ConfigError(
        'engine = "sglang", and no Python that has SGLang: run infra/sglang/sglang.sh setup in a checkout, '
        "pip install 'headrace[sglang]' where a GPU is, or name one by engine.python"
    )


def device(config: Config) -> str:
    """Where the model runs: the setting, else `cuda` where NVIDIA's driver is, else `cpu`."""
    return config.engine.device or ("cuda" if GPU.exists() else "cpu")


def context_tokens_max(model: Path) -> int:
    """The positions that the model's config.json has; no bound where it does not say."""
    said = json.loads((model / "config.json").read_text())
    found = said.get("max_position_embeddings") or said.get("text_config", {}).get("max_position_embeddings")
    return found if isinstance(found, int) else sys.maxsize


def arguments(config: Config, model: Path, version: int, port: int) -> tuple[str, ...]:
    """Module and words of a server of the weights in `model`; `engine.options` come last, so they win."""
    e = config.engine
    words = [
        MODULE,
        *("--model-path", str(model.absolute()), "--weight-version", str(version)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", e.dtype, "--context-length", str(e.context_tokens + CONTEXT_KEPT)),
        *("--max-running-requests", str(e.concurrent_calls), "--random-seed", str(config.seed)),
        *("--enable-metrics", "--log-level", "warning"),  # else a line a call and one a few steps
        "--enable-fp32-lm-head",  # logits in bfloat16 are up to 1/16 apart, and so from the trainer's
    ]
    if device(config) == "cpu":
        tokens = PREFIXES_PER_CALL * e.concurrent_calls * e.context_tokens
        words += [
            *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--disable-overlap-schedule", "--page-size", "1", "--skip-server-warmup"),
            "--sleep-on-idle",  # else it spins on a core that others could use
            *("--mem-fraction-static", MEMORY_SHARE, "--max-total-tokens", str(tokens)),
        ]
    if config.publication.transport == "mooncake":
        words += [REGISTER, "--engine-info-bootstrap-port", str(free_port())]
    if config.proxy.routed_experts:
        words.append("--enable-return-routed-experts")
    return (*words, *e.options)


def environment(config: Config, model: Path) -> dict[str, str]:
    """What a server of the weights in `model` needs to be told by its environment.

    It never asks the network for a model that lies here, and the folder that it is started in shadows no
    module.  Raises ConfigError for a context beyond the model's.
    """
    told = {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
    wanted, most = config.engine.context_tokens, context_tokens_max(model)
    if wanted > most:
        raise ConfigError(f"engine.context_tokens is {wanted}, above the model's {most} ({model})")
    if wanted + CONTEXT_KEPT > most:
        told["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if config.publication.transport == "mooncake":
        told |= {"MOONCAKE_PROTOCOL": "tcp", "MC_FORCE_TCP": "1"}
    if device(config) == "cpu":
        told |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(config.engine.threads)}
    return told
