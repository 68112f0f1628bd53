"""A process that appends to a table: `python -m tests.support.store_appender ROOT APP COMMITS [PAUSE_S]`.

Each commit holds rows of several groups and moves the offset of APP by their number.  "ready" is
printed when the table is open; a line on standard input starts it; "fenced AT" is printed where it
is refused.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from lake.store import Fenced, Store

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("app", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("ids", pa.list_(pa.int32())),
    ]
)
ROWS = 40
GROUPS = 8


def batch(app: str, start: int, rows: int = ROWS, groups: int = GROUPS, tokens: int = 20) -> pa.Table:
    """Rows of offsets `start` on, of groups that take turns; their ids follow from app and offset."""
    at = np.arange(start, start + rows)
    first = sum(app.encode()) * 1000
    return pa.table(
        {
            "group_id": [f"g-{n % groups:03d}" for n in at],
            "app": [app] * rows,
            "log_partition": [0] * rows,
            "log_offset": at,
            "ids": [list(range(first + n, first + n + tokens + n % 5)) for n in at],
        },
        SCHEMA,
    )


def start(root: str, app: str, commits: int, pause_s: float = 0.0) -> subprocess.Popen[str]:
    """The process, ready to begin: `begin` it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_appender", root, app, str(commits), str(pause_s)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def main() -> None:
    root, app, commits, pause_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    table = Store(root).table("events/t", SCHEMA)
    print("ready", flush=True)
    sys.stdin.readline()
    stood = None
    for number in range(commits):
        end = (number + 1) * ROWS
        try:
            table.append(batch(app, end - ROWS), {app: end}, {app: stood})
        except Fenced:
            print(f"fenced {end - ROWS}", flush=True)
            return
        stood = end
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
