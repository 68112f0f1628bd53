"""A process that appends many small events: `python -m tests.support.many URL EVENTS BATCH`.

Prints how many are acknowledged after each batch.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lake.events import ExecutionLaunched
from lake.log import open_log


def start(url: str, events: int, batch: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.many", url, str(events), str(batch)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def main() -> None:
    url, events, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    log = open_log(url)
    for first in range(0, events, batch):
        log.append(
            [
                ExecutionLaunched(time_us=n, group_id=f"g-{n % 97}", execution_id=f"e-{n}", index=n % 8)
                for n in range(first, min(first + batch, events))
            ]
        )
        print(min(first + batch, events), flush=True)
    log.close()


if __name__ == "__main__":
    main()
