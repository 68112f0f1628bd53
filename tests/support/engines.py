"""The embedded engine as a real process, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Running(NamedTuple):
    url: str
    pid: int


@contextmanager
def embedded_engine(model: Path, *options: str, start_s: float = 120.0, port: int = 0) -> Iterator[Running]:
    """`python -m ingest.engines.embedded` with these options; yields once it is ready."""
    port = port or free_port()
    command = [sys.executable, "-m", "ingest.engines.embedded", "--model", str(model), "--port", str(port)]
    process = subprocess.Popen([*command, *options], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + start_s
    try:
        while True:
            assert process.poll() is None, f"the engine ended with status {process.returncode}"
            assert time.monotonic() < until, f"the engine was not ready within {start_s} s"
            try:
                with urllib.request.urlopen(url + "/ready", timeout=1):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        yield Running(url, process.pid)
    finally:
        process.terminate()
        process.wait(20)
