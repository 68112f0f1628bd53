"""Memory of a worker over 10 million tokens of interleaved executions: `python -m tests.bench memory`.

Groups of 16 executions, 32 at once, come in waves through an embedded log; one worker ingests and
derives them.  Its resident memory is looked at after each wave; flat means that the second half of the
waves adds nothing to what the first half needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from ingest.worker import Worker
from lake.config import Config
from lake.log import open_log
from lake.store import Store
from tests.support.load import Shape, Texts, wave

COMMAND = "python -m tests.bench memory"
SHAPE = Shape(groups=32, size=16, calls=4, context=400, output=100)
WAVES = 12
TOKENS = WAVES * SHAPE.groups * SHAPE.tokens_of_group


def _measure(folder: Path) -> list[int]:
    """Resident bytes after each wave."""
    log, store = open_log(f"sqlite://{folder}/log.db"), Store(str(folder / "lake"))
    worker, texts, process = Worker(log, store, Config(commit_every_s=0.25)), Texts(0), psutil.Process()
    seen = []
    for number in range(WAVES):
        for events in wave(number, SHAPE, texts):
            log.append(events)
            worker.step(0.0)
        while worker.step(0.05, flush=True):
            pass
        seen.append(process.memory_info().rss)
    worker.close()
    return seen


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.executable, "-m", "tests.bench.bench_memory", folder],
            check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        ).stdout  # fmt: skip
    seen = json.loads(out.splitlines()[-1])
    half = len(seen) // 2
    growth = max(seen[half:]) / max(seen[:half])
    of = f"a worker over {TOKENS / 1e6:.1f} million tokens"
    return [
        {
            "id": "memory.peak", "what": f"resident memory, {of}", "value": round(max(seen) / 2**20, 1),
            "unit": "MiB", "bound": None, "holds": None, "command": COMMAND,
        },
        {
            "id": "memory.growth", "what": f"second half over first half, {of}", "value": round(growth, 3),
            "unit": "ratio", "bound": 1.1, "holds": growth <= 1.1, "command": COMMAND,
        },
    ]  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
