"""A real SGLang server for tests, started and stopped through infra/sglang/sglang.sh."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import free_port
from tests.support.random_model import make_tiny_model

_NAMED = re.compile(r"(^|/)test_\w*sglang\w*\.py::|\[sglang[-\]]|-sglang\]")

FOLDER = Path(__file__).parents[2] / "infra" / "sglang"
SCRIPT = FOLDER / "sglang.sh"
VENV = Path(os.environ.get("SGLANG_VENV", FOLDER / ".sglang" / "venv"))
CONTEXT = 2048
CALLS_MAX = 8


def named_so(nodeid: str) -> bool:
    """Whether a test says by the name of its file (test_sglang_...) or a parameter that it needs SGLang."""
    return _NAMED.search(nodeid) is not None


@dataclass(frozen=True)
class Server:
    """A running server of `model`; `model_2` is of its shape.  `environment` is None where it is not ours."""

    url: str
    model: Path
    model_2: Path
    environment: dict[str, str] | None = None
    options: tuple[str, ...] = ()  # of its start

    def control(self, *arguments: str) -> str:
        """What sglang.sh prints; fails the test with it where sglang.sh fails."""
        assert self.environment is not None, "this server is not ours to control"
        return _script(*arguments, environment=self.environment)

    def start(self) -> None:
        """Serve `model`, for the first time or after `control("kill")` or `control("stop")`."""
        self.control("start", str(self.model), *STANDARD, *self.options)


MOONCAKE = "--remote-instance-weight-loader-start-seed-via-transfer-engine"
STANDARD = ("--context-length", str(CONTEXT), "--max-running-requests", str(CALLS_MAX))


def _script(*arguments: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=840, check=False
    )
    if done.returncode:
        pytest.fail(f"sglang.sh {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def set_up() -> None:
    """Make the environment where there is none.  Skips without Python 3.11; fails where CI is set."""
    if not any(shutil.which(name) for name in (os.environ.get("SGLANG_PYTHON", "python3.11"), "python3")):
        sentence = "python3.11 is missing; SGLang is pinned for it: install it, or set SGLANG_PYTHON"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(sentence)
    _script("setup", environment=dict(os.environ))


def make_model(kind: str, folder: Path) -> Path:
    """A tiny model of random weights of this kind (infra/sglang/models.py), in a new folder."""
    _script("model", kind, str(folder), environment=dict(os.environ))
    return folder


def named(text: str) -> Server:
    """A server out of HEADRACE_TEST_SGLANG=URL,MODEL,MODEL_2."""
    url, model, model_2 = text.split(",")
    return Server(url, Path(model), Path(model_2))


@contextmanager
def running(folder: Path, *options: str, model: Path | None = None) -> Iterator[Server]:
    """A server of a random Qwen3 model, or of `model`; further `options` are SGLang's own."""
    set_up()
    made = [make_tiny_model(folder / f"model{s}", seed=s, sharpness=4.0) for s in (0, 1) if model is None]
    port = free_port()
    environment = os.environ | {
        "SGLANG_PORT": str(port),
        "SGLANG_HOME_LOCAL": str(folder / "home"),
        "SGLANG_VENV": str(VENV),
        "SGLANG_START_S": "600",  # of a machine with other work
    }
    first, second = made or [model, model]
    server = Server(f"http://127.0.0.1:{port}", first, second, environment, options)
    server.start()
    try:
        yield server
    finally:
        server.control("stop")
