"""Child processes: started in order, watched, stopped in order.

A process that dies ends the run: the others are stopped, and the sentence names it and its output.
Children die with their parent, even where that is killed with SIGKILL (Linux), so that a run
started again never meets its own orphans.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lake.parentage import die_with_parent

READY_S_MAX = 120.0
"""The slowest start: an engine that imports torch on a loaded machine takes some 20 s."""

STOP_S_MAX = 30.0
"""The slowest stop: a worker that reads the rest of the log into the lake."""

DEATHS_MAX, DEATHS_S = 5, 60.0
"""A process that is kept may die so often in so many seconds."""
PAUSE_S = 0.5


class ProcessDied(RuntimeError):
    """A process of the run ended when it must not: which, how, and where its output lies."""


def ask(request: str | urllib.request.Request, timeout_s: float) -> bytes:
    """The body of an answer (2xx); past any HTTP proxy of the environment: all whom we ask are ours.

    Raises urllib.error.HTTPError for another status, URLError or OSError where nobody answers.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout_s) as answer:
        return bytes(answer.read())


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


@dataclass
class Process:
    """One child: `python -m MODULE ARGS`, its output in a file, ready when `health` answers 200."""

    name: str
    arguments: Sequence[str]
    output: Path
    health: str | None = None
    hint: str = " The same run goes on from its log: headrace run FOLDER"
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | os.environ
        with self.output.open("ab") as sink:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                preexec_fn=die_with_parent,  # noqa: PLW1509  no threads yet: children start first
            )

    @property
    def pid(self) -> int:
        if self.popen is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.popen.pid

    def code(self) -> int | None:
        """The exit status, None while it runs."""
        return None if self.popen is None else self.popen.poll()

    def died(self, *, for_good: bool = True) -> ProcessDied:
        """What there is to say of it; the hint, what to do then, only where it stays dead."""
        code = self.code()
        ending = "did not get ready" if code is None else _ending(code)
        tail = self.output.read_text(errors="replace").strip().splitlines()[-1:] or ["(no output)"]
        return ProcessDied(
            f"{self.name} {ending}; it last said: {tail[0][:300]} (all of it: {self.output})"
            + (f".{self.hint}" if for_good else "")
        )

    def wait_ready(self) -> None:
        """Raises ProcessDied where it ends first or is not ready within READY_S_MAX."""
        until = time.monotonic() + READY_S_MAX
        while self.health is not None:
            if self.code() is not None or time.monotonic() > until:
                raise self.died()
            try:
                ask(self.health, 2.0)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)

    def ask_to_stop(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.popen.terminate()

    def end(self, within_s: float = STOP_S_MAX) -> None:
        """Wait for the end; SIGKILL after `within_s`."""
        if self.popen is None:
            return
        try:
            self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


@dataclass
class Revived:
    """A process that is started again, after a pause, when it ends by itself."""

    process: Process
    restarts: int = 0
    _deaths: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS_MAX))
    _start_at: float = 0.0

    def look(self, say: Callable[[str], None]) -> bool:
        """Start it again where it has died, after a pause; whether it did so now.

        Raises ProcessDied where that does not help.
        """
        now = time.monotonic()
        if self._start_at:
            if now < self._start_at:
                return False
            self._start_at = 0.0
            self.process.start()
            return True
        if self.process.code() is None:
            return False
        self._deaths.append(now)
        if len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_S:
            raise ProcessDied(f"{self.process.died()} (it died {DEATHS_MAX} times within {DEATHS_S:g} s)")
        self.restarts += 1
        say(f"{self.process.died(for_good=False)}; starting it again")
        self._start_at = now + PAUSE_S * 2 ** len(self._deaths)
        return False


class Processes:
    """The processes of one run, in the order in which they need each other."""

    def __init__(self) -> None:
        self._all: list[Process] = []

    def start(self, process: Process) -> Process:
        self._all.append(process)
        process.start()
        return process

    def dead(self, but: Process | None = None) -> Process | None:
        """A process that ended (other than `but`, which may)."""
        return next((p for p in self._all if p is not but and p.code() is not None), None)

    def pids(self) -> dict[str, int]:
        return {p.name: p.pid for p in self._all}

    def stop(self) -> None:
        """Stop the last started first: who writes stops before who reads."""
        for process in reversed(self._all):
            process.ask_to_stop()
            process.end()

    def kill(self) -> None:
        """Stop all at once: something died, and the log knows what was acknowledged."""
        for process in self._all:
            if process.popen is not None and process.popen.poll() is None:
                process.popen.kill()
        for process in self._all:
            process.end()
