"""A process that is a member of the workers: `python -m tests.support.member URL GROUP INSTANCE SESSION_S`.

INSTANCE may be empty.  Prints a line "GENERATION LANE,LANE,..." whenever that changes, and goes on until
standard input ends; then it leaves.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lake.log_kafka import KafkaLog

SESSION_S = 6.0
"""The smallest that a broker takes unless it is set up otherwise."""


class Member:
    """The process, and what it said it owns."""

    def __init__(self, url: str, group: str, instance: str = "") -> None:
        self.said: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.member", url, group, instance, str(SESSION_S)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            generation, _, lanes = line.strip().partition(" ")
            self.said.append((int(generation), frozenset(int(p) for p in lanes.split(",") if p)))

    @property
    def lanes(self) -> frozenset[int]:
        return self.said[-1][1]

    def end(self) -> None:
        """Leave, and be gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self._reading.join(30)
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.end()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def main() -> None:
    url, group, instance, session_s = sys.argv[1:]
    log = KafkaLog(url)
    members = log.members(group, instance or None, float(session_s))
    said = None
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        lanes = members.lanes()
        if (members.generation, lanes) != said:
            said = members.generation, lanes
            print(members.generation, ",".join(str(p) for p in sorted(lanes)), flush=True)
    members.close()
    log.close()


if __name__ == "__main__":
    main()
