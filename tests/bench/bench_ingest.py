"""P2: log -> Delta on one core, beside its two halves: `python -m tests.bench ingest`.

A real Kafka broker holds EVENTS model calls (tests/support/load.py).  In one process that is bound to
one core: kafka-python consumes them alone, pyarrow writes them alone (with its defaults, and with the
lake's encodings), and the lake is filled from the log: checks, Delta commits with offsets, fsync.
Each is done ROUNDS times, and the best of each counts.  One core that does one after the other reaches
little over half of the slower, whatever it does: the last row says what.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from kafka import KafkaConsumer, TopicPartition

from ingest.tables import BATCH_BYTES, EventTables, copy_all
from ingest.worker import prepare_process
from lake.events import ModelCalled
from lake.log import open_log
from lake.store import Store
from lake.tables import SCHEMAS
from tests.support import kafka
from tests.support.load import Shape, Texts, wave

COMMAND = "python -m tests.bench ingest"
SHAPE = Shape(groups=32, size=16, calls=16)
TOKENS = SHAPE.groups * SHAPE.tokens_of_group
ROUNDS = 3
PARTITIONS = 4


def _fill(url: str) -> None:
    log = open_log(url)
    for events in wave(0, SHAPE, Texts(0)):
        log.append([e for e in events if isinstance(e, ModelCalled)])
    log.close()


def _consume(address: str, prefix: str) -> None:
    """Every record of `calls`, by kafka-python alone, with the settings of our reader."""
    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest",
        fetch_max_bytes=8 << 20, max_partition_fetch_bytes=2 << 20,
    )  # fmt: skip
    consumer.assign([TopicPartition(f"{prefix}.calls", p) for p in range(PARTITIONS)])
    left = SHAPE.groups * SHAPE.size * SHAPE.calls
    while left:
        left -= sum(map(len, consumer.poll(1000, max_records=2000).values()))
    consumer.close()


def _best(rounds: int, work: Callable[[int], Any]) -> float:
    seconds = []
    for number in range(rounds):
        began = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _measure(address: str, prefix: str, folder: Path) -> dict[str, float]:
    """Seconds of each; this process is bound to one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    prepare_process()
    log = open_log(f"kafka://{address}/{prefix}")

    def ingest(number: int) -> EventTables:
        return copy_all(log, Store(str(folder / f"lake-{number}")))

    seconds = {"ingest": _best(ROUNDS, ingest)}
    rows = Store(str(folder / "lake-0")).table("events/calls", SCHEMAS["calls"]).read()
    portion = rows.num_rows * BATCH_BYTES // rows.nbytes

    def write(number: int, **settings: Any) -> None:
        for at in range(0, rows.num_rows, portion):
            pq.write_table(rows.slice(at, portion), folder / f"alone-{number}-{at}.parquet", **settings)

    strings = [f.name for f in rows.schema if f.type == pa.string()]
    same = {"compression": "zstd", "use_dictionary": strings, "write_statistics": False}
    seconds["consume"] = _best(ROUNDS, lambda _: _consume(address, prefix))
    seconds["write"] = _best(ROUNDS, write)
    seconds["write.same"] = _best(ROUNDS, lambda number: write(number, **same))
    log.close()
    return seconds


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    folder = Path(tempfile.mkdtemp())
    try:
        with kafka.running(folder / "kafka") as broker:
            _fill(f"kafka://{broker.address}/bench?partitions={PARTITIONS}")
            out = subprocess.run(
                [sys.executable, "-m", "tests.bench.bench_ingest", broker.address, "bench", str(folder)],
                check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            ).stdout  # fmt: skip
    finally:
        shutil.rmtree(folder)
    seconds = json.loads(out.splitlines()[-1])
    rates = {name: TOKENS / s / 1e6 for name, s in seconds.items()}
    least = {name: min(rates["consume"], rates[name]) for name in ("write", "write.same")}
    ceiling = 1 / (1 / rates["consume"] + 1 / rates["write.same"])
    return [
        _row("ingest", "log (Kafka) to Delta, one core: unique tokens", rates["ingest"], "Mtoken/s", 8.0),
        _row("consume", "kafka-python consuming alone", rates["consume"], "Mtoken/s"),
        _row("write", "pyarrow writing alone, as it comes", rates["write"], "Mtoken/s"),
        _row("write.same", "pyarrow writing alone, encoded as the lake", rates["write.same"], "Mtoken/s"),
        _row(
            "ratio", "ingest to the slower of consume and write", rates["ingest"] / least["write"],
            "ratio", 0.5,
        ),
        _row(
            "ratio.same", "ingest to the slower of consume and write.same",
            rates["ingest"] / least["write.same"], "ratio", 0.5,
        ),
        _row(
            "ratio.ceiling", "the same, if nothing were done but consume, then write.same",
            ceiling / least["write.same"], "ratio",
        ),
    ]  # fmt: skip


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    holds = None if bound is None else value >= bound
    return {
        "id": f"P2.{name}", "what": what, "value": round(value, 3), "unit": unit, "bound": bound,
        "holds": holds, "command": COMMAND,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
