"""A lake made again from its log, by one process and by two: `python -m tests.bench.bench_rebuild`.

The log holds GROUPS groups of long calls in four partitions, and a lake to compare with.  Measured are
the whole command (lanes, derived sets, comparing both lakes row by row) without the start of Python.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from ingest.executors import Processes, Work
from ingest.rebuild import Rebuilt, rebuild
from ingest.shards import DigestShard, digest_lane
from ingest.supervise import ingest
from lake.config import Config, override
from lake.layout import Run
from tests.support.load import Shape, Texts, wave

COMMAND = "python -m tests.bench.bench_rebuild"
SHAPE = Shape(groups=16, size=8, calls=8)
WAVES = 6


def _run(path: Path) -> tuple[Run, int]:
    """A run whose log was ingested; its unique tokens."""
    run = Run(path)
    path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(override(Config(), ["partitions=4"])))
    with closing(run.open_log()) as log:
        texts = Texts(0)
        for number in range(WAVES):
            for events in wave(number, SHAPE, texts):
                for start in range(0, len(events), 200):
                    log.append(events[start : start + 200])
    ingest(run, 2, once=True, metrics_port=None, say=lambda _: None, show=lambda _: None)
    return run, WAVES * SHAPE.groups * SHAPE.tokens_of_group


def _rebuilt(run: Run, workers: int, into: Path) -> tuple[Rebuilt, float]:
    """By so many processes, that have started and imported everything before the clock does."""
    executor = Processes(workers)
    warm = [DigestShard(lake=str(into), table="calls", topic="calls", partition=p, end=0) for p in range(8)]
    list(executor.run(digest_lane, warm))
    began = time.perf_counter()
    try:
        done = rebuild(run, Work(executor), into=str(into))
    finally:
        executor.close()
    if done.differing:
        raise RuntimeError(f"the lake made again differs in {done.differing}")
    return done, time.perf_counter() - began


def _row(name: str, what: str, value: float, unit: str) -> dict[str, Any]:
    return {
        "id": f"rebuild.{name}", "what": what, "value": round(value, 3), "unit": unit,
        "bound": None, "holds": None, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    rows, rates = [], {}
    with tempfile.TemporaryDirectory() as name:
        run_, tokens = _run(Path(name) / "run")
        for workers in (1, 2):
            done, seconds = _rebuilt(run_, workers, Path(name) / f"again-{workers}")
            of = f"{workers} process{'es' * (workers > 1)}: copied, derived and compared with the lake"
            rates[workers] = tokens / seconds
            rows += [
                _row(f"rows.{workers}", f"rows, {of}", done.rows / seconds, "rows/s"),
                _row(f"tokens.{workers}", f"unique tokens, {of}", rates[workers] / 1e6, "Mtoken/s"),
            ]
    rows.append(_row("ratio", "two processes over one", rates[2] / rates[1], "times"))
    return rows


def main() -> None:
    for row in run():
        print(f"{row['id']:28} {row['value']:12,.3f} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
