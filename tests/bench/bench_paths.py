"""P3, calls to admitted paths and weights over a whole lake: `python -m tests.bench paths`.

A lake of the paper's shape (tests.bench.traces): 512 executions, 204,800 calls, 261 million tokens that are
not shared, in Delta tables on disk.  Each case is derived in a process of its own, on two threads under a
limit of 1 GB, from the files to the tables; the least wall time of RUNS, and the peak of resident memory
of the process, interpreter and all.  No case reads a token: trees are ranges, made of lengths.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from lake.models import EVENT_TABLES, Models, Params, register
from lake.store import Store
from tests.bench import traces

COMMAND = "python -m tests.bench paths"
PATHS = ("admitted", "weights")
RANGES = ("admitted", "segments", "weights")
WHOLE, PART, DISTINCT = 512, 64, 64
WIDE, WIDE_DISTINCT = 256, 32
RUNS = 5


def _measure(lake: str, outputs: Sequence[str], threads: int) -> dict[str, float]:
    """Seconds, peak bytes and rows of the outputs, of deriving them from the files of a lake."""
    store, models, took = Store(lake), Models.load(), []
    rows: dict[str, int] = {}
    for _ in range(RUNS):
        with duckdb.connect(config={"threads": threads, "memory_limit": "1GB"}) as con:
            register(con, {})
            for name in EVENT_TABLES:
                table = store.existing(f"events/{name.removeprefix('event_')}")
                if table is not None:
                    con.unregister(name)
                    con.execute(f"create temp view {name} as from read_parquet({table.files()})")
            start = time.perf_counter()
            derived = models.derive(con, outputs, Params())
            took.append(time.perf_counter() - start)
            rows = {name: table.num_rows for name, table in derived.items()}
    status = Path("/proc/self/status").read_text()  # getrusage would tell of the parent before exec, too
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return {"seconds": min(took), "bytes": int(peak.split()[1]) * 1024, **rows}


def _apart(lake: Path, outputs: Sequence[str], threads: int = 2) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.bench_paths", str(lake), ",".join(outputs), str(threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def _tokens(lake: Path) -> int:
    files = Store(str(lake)).table("events/calls", EVENT_TABLES["event_calls"]).files()
    counted = duckdb.sql(f"select sum(n_context + n_output)::bigint from read_parquet({files})").fetchall()
    return int(counted[0][0])


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    return {
        "id": f"P3{name}", "what": what, "value": round(value, 3), "unit": unit, "bound": bound,
        "holds": None if bound is None else value <= bound, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        whole, part, wide = (Path(folder, name) for name in ("whole", "part", "wide"))
        traces.lake(str(whole), WHOLE, DISTINCT)
        traces.lake(str(part), PART, DISTINCT)
        traces.lake(str(wide), WIDE, WIDE_DISTINCT, traces.WIDE)
        tokens = _tokens(whole)
        paths, ranges, one = _apart(whole, PATHS), _apart(whole, RANGES), _apart(whole, PATHS, 1)
        small, small_ranges, wides = _apart(part, PATHS), _apart(part, RANGES), _apart(wide, RANGES)
    of = f"{WHOLE} executions, {WHOLE * traces.PAPER.calls} calls, {tokens / 1e6:.0f}M tokens"
    linear = {
        name: WHOLE / PART / more["seconds"] * less["seconds"] for name, more, less in
        (("paths", paths, small), ("ranges", ranges, small_ranges))
    }  # fmt: skip
    return [
        _row("", f"calls to admitted paths and weights: {of}", paths["seconds"], "s", 1.3),
        _row(".memory", "peak of that process", paths["bytes"] / 2**20, "MiB", 1024),
        _row(".segments", f"with {ranges['segments']} segments, into Arrow", ranges["seconds"], "s", 1.3),
        _row(".segments.memory", "peak of that process", ranges["bytes"] / 2**20, "MiB", 1024),
        _row(".rate", "own tokens a second of P3", tokens / paths["seconds"] / 1e6, "Mtoken/s"),
        _row(".one", "P3 on one thread", one["seconds"], "s"),
        _row(".linear", f"time an execution, {WHOLE} over {PART}", 1 / linear["paths"], "times", 1.3),
        _row(".segments.linear", "the same with segments", 1 / linear["ranges"], "times", 1.3),
        _row(".wide", f"{WIDE} of 200 leaves each, {wides['segments']} segments", wides["seconds"], "s"),
        _row(".wide.memory", "peak of that process", wides["bytes"] / 2**20, "MiB", 1024),
    ]


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))))
