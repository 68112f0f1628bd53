"""Ingest workers as processes, and what tests ask of the lake that they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa

from lake.config import Config, override
from lake.events import Event
from lake.layout import Run
from lake.store import Store
from lake.tables import SCHEMAS

SESSION_S = 6.0  # the least that a broker allows, by default


def a_run(path: Path, *settings: str) -> Run:
    """A run's folder with a configuration, nothing else."""
    run = Run(path)
    run.path.mkdir(parents=True)
    config = override(Config(), [f"ingest.session_s={SESSION_S}", "commit_every_s=0.05", *settings])
    run.config_file.write_bytes(msgspec.json.encode(config))
    return run


class Workers:
    """Worker processes of one run; use it as a context."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all:
            with suppress(ProcessLookupError):
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        output = self.run.path / f"worker-{len(self.all)}.log"
        with output.open("wb") as sink:
            worker = subprocess.Popen(
                [sys.executable, "-m", "ingest.worker", "--run", str(self.run.path), *arguments],
                env=os.environ | environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        self.all.append(worker)
        return worker

    def said(self, worker: subprocess.Popen[bytes]) -> str:
        return (self.run.path / f"worker-{self.all.index(worker)}.log").read_text()

    def stop(self) -> None:
        """Ask all to end; each reads the log to its end first."""
        for worker in self.all:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.all:
            if worker.poll() is None and worker.wait(60):
                raise AssertionError(self.said(worker)[-3000:])


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, looked at ten times a second."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.1)


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether the kernel has it stopped (SIGSTOP)."""
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def rows(run: Run, topic: str, columns: Sequence[str] | None = None) -> pa.Table:
    return Store(run.lake).table(f"events/{topic}", SCHEMAS[topic]).read(columns=columns)


def ids_in_lake(run: Run, topics: Sequence[str] = ("calls", "executions", "scores", "groups")) -> list[str]:
    """The event ids of these topics, sorted, without those of the workers' own events."""
    found = [i for topic in topics for i in rows(run, topic, ["event_id"])["event_id"].to_pylist()]
    return sorted(i for i in found if not i.endswith(":ready"))


def ready_groups(run: Run) -> list[str]:
    table = rows(run, "groups", ["group_id", "type"]).to_pylist()
    return sorted(r["group_id"] for r in table if r["type"] == "group.ready")


def ids_of(events: Sequence[Event]) -> list[str]:
    return sorted(e.event_id for e in events)
