"""P5: last score to `group.ready`, at 1,000 events a second: `python -m tests.bench ready`.

A process appends EVENTS_PER_S events a second to a real Kafka broker: groups that overlap, so that some
end at every moment.  A worker process ingests and derives.  The time is the broker's: when it had the
group's last score, and when it had its `group.ready`.  Twice: with executions of 60 calls (a group a
second ends), and with short ones of 10 (five groups a second).  Load, broker and worker share the machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lake import events as ev
from lake.log import Log, open_log
from lake.wire import decode
from tests.support import kafka
from tests.support.load import Shape, Texts, wave
from tests.support.workers import Workers, a_run, until

COMMAND = "python -m tests.bench ready"
EVENTS_PER_S = 1000
LONG = Shape(groups=1, size=16, calls=60, context=500, output=125)
SHORT = Shape(groups=1, size=16, calls=10, context=500, output=125)
SECONDS = {"long": 60, "short": 30}
WARM_S = {"long": 14, "short": 5}
OPEN_GROUPS = 24
TICK_S = 0.05


def events_of_group(shape: Shape) -> int:
    return 1 + shape.size * (shape.calls + 3)


def stream(texts: Texts, shape: Shape = SHORT) -> Iterator[ev.Event]:
    """Events of OPEN_GROUPS groups at once, for ever; they start apart, so that they end apart."""

    def group(number: int) -> Iterator[ev.Event]:
        for events in wave(number, shape, texts):
            yield from events

    started = OPEN_GROUPS
    open_groups = [group(number) for number in range(OPEN_GROUPS)]
    for at, one in enumerate(open_groups):
        for _ in range(events_of_group(shape) * at // OPEN_GROUPS):
            yield next(one)
    while True:
        for at in range(OPEN_GROUPS):
            event = next(open_groups[at], None)
            if event is None:
                open_groups[at] = group(started)
                started += 1
                event = next(open_groups[at])
            yield event


def append_paced(url: str, name: str) -> None:
    """Append EVENTS_PER_S events a second for a while; the rate that was reached is printed."""
    log, events = open_log(url), stream(Texts(0), {"long": LONG, "short": SHORT}[name])
    seconds = SECONDS[name]
    per_tick = round(EVENTS_PER_S * TICK_S)
    began = time.perf_counter()
    for tick in range(round(seconds / TICK_S)):
        time.sleep(max(0.0, began + tick * TICK_S - time.perf_counter()))
        log.append([next(events) for _ in range(per_tick)])
    print(EVENTS_PER_S * seconds / (time.perf_counter() - began))
    log.close()


def waits(log: Log, warm_s: float) -> list[float]:
    """Seconds from last score to ready, of the groups that ended after the first `warm_s` seconds."""
    last: dict[str, int] = {}
    ready: dict[str, int] = {}
    for topic in ("scores", "groups"):
        lanes = {(topic, p): 0 for p in range(log.partitions(topic))}
        reader = log.reader(lanes)
        while records := reader.poll(0.5):
            for record in records:
                event = decode(record.headers, record.value)
                if isinstance(event, ev.ExecutionScored):
                    last[event.group_id] = max(last.get(event.group_id, 0), record.appended_us)
                elif isinstance(event, ev.GroupReady):
                    ready.setdefault(event.group_id, record.appended_us)
        reader.close()
    since = min(last.values()) + warm_s * 1_000_000
    return sorted((at - last[g]) / 1e6 for g, at in ready.items() if last[g] >= since)


def measure(broker: kafka.Broker, folder: Path, name: str) -> tuple[float, list[float]]:
    """The rate reached, and the waits in ascending order."""
    url = f"kafka://{broker.address}/{name}?partitions=4"
    run = a_run(folder / name, f"log={url}", "commit_every_s=0.5")
    log = run.open_log()
    with Workers(run) as workers:
        worker = workers.start()
        until(lambda: "lanes [0" in workers.said(worker))
        appender = [sys.executable, "-m", "tests.bench.bench_ready", url, name]
        rate = float(subprocess.run(appender, check=True, capture_output=True, text=True).stdout)
        workers.stop()
    seconds = waits(log, WARM_S[name])
    log.close()
    return rate, seconds


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    holds = None if bound is None else value <= bound
    return {
        "id": f"P5.{name}", "what": what, "value": round(value, 3), "unit": unit, "bound": bound,
        "holds": holds, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    rows = []
    with tempfile.TemporaryDirectory() as name, kafka.running(Path(name) / "kafka") as broker:
        for kind, shape in (("long", LONG), ("short", SHORT)):
            rate, seconds = measure(broker, Path(name), kind)
            p50, p99 = (float(np.quantile(seconds, q)) for q in (0.5, 0.99))
            of = f"last score to group.ready, {len(seconds)} groups of {events_of_group(shape)} events"
            rows += [
                _row(f"{kind}.rate", "events appended a second (asked: 1,000)", rate, "events/s"),
                _row(f"{kind}.p50", of, p50, "s"),
                _row(f"{kind}.p99", of, p99, "s", 1.0 if kind == "long" else None),
            ]
    return rows


if __name__ == "__main__":
    append_paced(sys.argv[1], sys.argv[2])
