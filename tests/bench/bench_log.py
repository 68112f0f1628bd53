"""Throughput and latency of the SQLite log: `python -m tests.bench.bench_log`.

Appends of single events of 2 KB (a model call of the demo is 1 to 3 KB), from one process and from
four at once; reading them back; and what a reader costs that waits for nothing.  Nothing is asserted.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from lake.events import CellEvent, ToolCalled
from lake.log import now_us, open_log

COMMAND = "python -m tests.bench.bench_log"
VALUE_BYTES = 2048
APPENDS = 4000  # by all writers together
READ = 40_000
PACED_PER_S = 100


def _event(writer: int, number: int) -> ToolCalled:
    return ToolCalled(
        time_us=now_us(), group_id=f"g-{writer}", execution_id=f"e-{writer}", tool_call_id=str(number),
        call_id=None, name="bench", arguments=b"", result=os.urandom(VALUE_BYTES), started_us=0, stopped_us=0,
    )  # fmt: skip


def _append(url: str, writer: int, load: tuple[int, float], ready: Barrier, results: Any) -> None:
    """Append events one at a time, so many and so many seconds apart; seconds of each, and of all."""
    count, pace_s = load
    log = open_log(url)
    events = [_event(writer, i) for i in range(count)]
    took = []
    ready.wait()
    began = time.perf_counter()
    for i, event in enumerate(events):
        if pace_s:
            time.sleep(max(0.0, began + i * pace_s - time.perf_counter()))
        before = time.perf_counter()
        log.append([event])
        took.append(time.perf_counter() - before)
    results.put((took, time.perf_counter() - began))


def _appends(folder: Path, writers: int, count: int, pace_s: float = 0.0) -> tuple[list[float], float]:
    """Sorted seconds of each append, and seconds until the last writer was done."""
    url = f"sqlite://{folder}/append-{writers}-{pace_s:g}.db"
    open_log(url).close()
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(writers), context.SimpleQueue()
    processes = [
        context.Process(target=_append, args=(url, w, (count // writers, pace_s), ready, results))
        for w in range(writers)
    ]
    for process in processes:
        process.start()
    answers = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return sorted(s for took, _ in answers for s in took), max(seconds for _, seconds in answers)


def _read(folder: Path) -> float:
    """Seconds to read READ records of VALUE_BYTES."""
    log = open_log(f"sqlite://{folder}/read.db")
    for at in range(0, READ, 1000):
        log.append([_event(0, at + i) for i in range(1000)])
    reader = log.reader({("tools", 0): 0})
    began, seen = time.perf_counter(), 0
    while seen < READ:
        seen += len(reader.poll(1.0))
    return time.perf_counter() - began


def _idle(folder: Path) -> float:
    """Share of a core that a reader of every topic takes while nothing is appended."""
    log = open_log(f"sqlite://{folder}/idle.db?partitions=4")
    log.append([CellEvent(time_us=0, cell="bench", session="s", change="started")])
    lanes = [(t, p) for t in ("calls", "executions", "scores", "groups") for p in range(4)]
    reader = log.reader(dict.fromkeys(lanes, 0))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(20):
        reader.poll(0.25)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def _row(name: str, what: str, value: float, unit: str) -> dict[str, Any]:
    return {
        "id": f"log.sqlite.{name}", "what": what, "value": round(value, 3), "unit": unit,
        "bound": None, "holds": None, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for writers in (1, 4):
            took, seconds = _appends(folder, writers, APPENDS)
            of = f"single events of 2 KB, {writers} process{'es' * (writers > 1)} at once"
            rate = len(took) / seconds
            suffix = f".{writers}"
            rows += [
                _row(f"append{suffix}", f"appends, {of}", rate, "events/s"),
                _row(f"append{suffix}.bytes", f"appends, {of}", rate * VALUE_BYTES / 1e6, "MB/s"),
                _row(f"append{suffix}.p50", f"latency, {of}", 1e3 * took[len(took) // 2], "ms"),
                _row(f"append{suffix}.p99", f"latency, {of}", 1e3 * took[len(took) * 99 // 100], "ms"),
            ]
        took, _ = _appends(folder, 4, 800, pace_s=4 / PACED_PER_S)
        of = f"{PACED_PER_S} events of 2 KB a second from 4 processes"
        rows += [
            _row("paced.p50", f"latency, {of}", 1e3 * took[len(took) // 2], "ms"),
            _row("paced.p99", f"latency, {of}", 1e3 * took[len(took) * 99 // 100], "ms"),
        ]
        seconds = _read(folder)
        rows += [
            _row("read", "records of 2 KB read, one reader", READ / seconds, "events/s"),
            _row(
                "read.bytes", "records of 2 KB read, one reader", READ * VALUE_BYTES / seconds / 1e6, "MB/s"
            ),
            _row("idle", "a reader of 16 partitions that waits", 100 * _idle(folder), "% of a core"),
        ]
    return rows


def main() -> None:
    for row in run():
        print(f"{row['id']:28} {row['value']:12,.3f} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
