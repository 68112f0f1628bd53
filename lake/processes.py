"""Child processes: started in order, watched, stopped in order.

A process that dies ends the run: the others are stopped, and the sentence names it and its output; one that
is `Revived` is started again where it was, some times.  Children die with their parent, even where that is
killed with SIGKILL (Linux), so that a run started again never meets its own orphans.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lake.parentage import die_with_parent

READY_S_MAX = 120.0
"""The slowest start of a process of ours: on a loaded machine importing torch takes some 20 s."""

STOP_S_MAX = 30.0
"""The slowest stop: a worker that reads the rest of the log into the lake."""

DEATHS_MAX, DEATHS_S = 5, 60.0
"""A process that is kept may die so often in so many seconds."""

STARTS_MAX = 3
"""So often in a row it may end, or hang, before it is ready: a slow start dies too seldom for DEATHS_S."""

PAUSE_S = 0.5
LOOK_S = 1.0
"""A process that is starting again is asked whether it is ready so often, and waited for so long."""


class ProcessDied(RuntimeError):
    """A process of the run ended when it must not: which, how, and where its output lies."""


def ask(request: str | urllib.request.Request, timeout_s: float) -> bytes:
    """The body of an answer (2xx); past any HTTP proxy of the environment: all whom we ask are ours.

    Raises urllib.error.HTTPError for another status, URLError or OSError where nobody answers.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except http.client.HTTPException as error:  # it died while it answered
        raise urllib.error.URLError(error) from error


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


@dataclass
class Process:
    """One child: `python -m MODULE ARGS`, its output in a file, ready when `health` answers 200.

    `python` is the interpreter (empty: ours), `environment` goes over what is inherited.  A process with
    `children` takes them along, however it or we end.
    """

    name: str
    arguments: Sequence[str]
    output: Path
    health: str | None = None
    hint: str = " The same run goes on from its log: headrace run FOLDER"
    python: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_s_max: float = READY_S_MAX
    children: bool = False
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        defaults = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment = {**defaults, **os.environ, **self.environment}
        family = (sys.executable, "-m", "lake.family") if self.children else ()
        with self.output.open("ab") as sink:
            self.popen = subprocess.Popen(
                [*family, self.python or sys.executable, "-m", *self.arguments],
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

    def is_ready(self, within_s: float = 2.0) -> bool:
        """Whether `health` answers 200; one without it is ready at once."""
        if self.health is None:
            return True
        try:
            ask(self.health, within_s)
        except OSError:
            return False
        return True

    def wait_ready(self) -> None:
        """Raises ProcessDied where it ends first or is not ready within `ready_s_max`."""
        until = time.monotonic() + self.ready_s_max
        while not self.is_ready():
            if self.code() is not None or time.monotonic() > until:
                raise self.died()
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
        if self.children:
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)


@dataclass
class Revived:
    """A process that is started again, after a pause, when it ends by itself or hangs at a start of ours."""

    process: Process
    restarts: int = 0
    _deaths: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS_MAX))
    _start_at: float = 0.0
    _starts: int = 0  # since it was ready
    _started: float = 0.0
    _look_at: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether it runs and has been ready since it was started."""
        return not self._starts and not self._start_at

    def look(self, say: Callable[[str], None]) -> bool:
        """Start it again where it has died, after a pause; whether it did so now.

        Raises ProcessDied where that does not help.
        """
        now = time.monotonic()
        if self._start_at:
            if now < self._start_at:
                return False
            self._start_at, self._started = 0.0, now
            self._starts += self.process.health is not None
            self.process.start()
            return True
        if self.process.code() is None:
            self._look_at_start(now)
            return False
        self._deaths.append(now)
        if len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_S:
            raise ProcessDied(f"{self.process.died()} (it died {DEATHS_MAX} times within {DEATHS_S:g} s)")
        if self._starts >= STARTS_MAX:
            raise ProcessDied(
                f"{self.process.died()} (it was started {STARTS_MAX} times and never got ready)"
            )
        say(f"{self.process.died(for_good=False)}; starting it again")
        self._again(now)
        return False

    def replace(self, why: str, say: Callable[[str], None]) -> None:
        """End it, which runs, and start it again; no death of its own."""
        say(f"{self.process.name} {why}; starting it again")
        self._again(time.monotonic())

    def _again(self, now: float) -> None:
        self.process.end(0.0)
        self.restarts += 1
        self._start_at = now + PAUSE_S * 2 ** len(self._deaths)

    def _look_at_start(self, now: float) -> None:
        """Note that it is ready; end one that hangs on its way there."""
        if not self._starts or now < self._look_at:
            return
        if self.process.is_ready(LOOK_S):
            self._starts = 0
        elif now - self._started > self.process.ready_s_max:
            self.process.end(0.0)
        self._look_at = time.monotonic() + LOOK_S


class Processes:
    """The processes of one run, in the order in which they need each other."""

    def __init__(self) -> None:
        self._all: list[Process] = []

    def start(self, process: Process) -> Process:
        self._all.append(process)
        process.start()
        return process

    def dead(self, *but: Process | None) -> Process | None:
        """A process that ended (other than those that may)."""
        watched = (p for p in self._all if not any(p is other for other in but))
        return next((p for p in watched if p.code() is not None), None)

    def wait_ready(self, process: Process) -> None:
        """Raises ProcessDied where it ends first, or any other does, or it takes over `ready_s_max`."""
        until = time.monotonic() + process.ready_s_max
        while not process.is_ready():
            if dead := self.dead():
                raise dead.died()
            if time.monotonic() > until:
                raise process.died()
            time.sleep(0.05)

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
