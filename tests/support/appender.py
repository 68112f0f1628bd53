"""A process that appends: `python -m tests.support.appender URL NAME BATCHES`.

Each batch is three events over two topics, all with the batch's number as their time.  "ready" is printed
when the log is open; then a line on standard input starts it, and each batch's number is printed
once its append returned.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lake.events import Event
from lake.log import open_log
from tests.support.events import cell, tool


def start(url: str, name: str, batches: int) -> subprocess.Popen[str]:
    """The process, ready to begin: `begin` it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.appender", url, name, str(batches)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def batch(name: str, number: int) -> list[Event]:
    return [
        tool(f"{name}-{number % 5}", number, b"x" * 500, execution=name),
        tool(f"{name}-all", number, execution=f"{name}-all"),
        cell(name, number),
    ]


def main() -> None:
    url, name, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
    log = open_log(url)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(batches):
        log.append(batch(name, number))
        print(number, flush=True)
    log.close()


if __name__ == "__main__":
    main()
