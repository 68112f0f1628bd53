"""What a worker tells Prometheus: how far it is behind, what it committed, how long a group waited."""

from __future__ import annotations

from pathlib import Path

from ingest.worker import Worker
from lake.config import Config
from lake.log import open_log
from lake.metrics import REGISTRY
from lake.store import Store
from lake.wire import Headers
from tests.support.run_events import finished_group


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headrace_worker_{name}", labels) or 0.0


def test_lag_rows_repeats_and_dead_letters_are_counted(tmp_path: Path) -> None:
    log, store = open_log(f"sqlite://{tmp_path / 'log.db'}"), Store(str(tmp_path / "lake"))
    worker = Worker(log, store, Config(), clock=iter(range(0, 10**6, 10)).__next__)
    before = {n: sample(f"{n}_total") for n in ("tokens", "groups_ready")}
    rows = sample("rows_total", table="calls")
    twice, dead = (sample(f"{n}_total", topic="calls") for n in ("duplicates", "dead_letters"))
    events = finished_group(0)
    log.append(events)
    log.append([e for e in events if e.TOPIC == "calls"][:3])
    log.append_raw("calls", "g-000000", Headers("model.called", 1, "x:0"), b"\xc1 no msgpack")
    assert worker.lag()["calls", 0] == 12 + 3 + 1
    while worker.step(0.0, flush=True):
        pass
    worker.step(0.0, flush=True)
    assert sample("lag_records", topic="calls", partition="0") == 0
    assert sample("rows_total", table="calls") - rows == 12
    assert sample("tokens_total") - before["tokens"] == 12 * 9
    assert sample("groups_ready_total") - before["groups_ready"] == 1
    assert sample("duplicates_total", topic="calls") - twice == 3
    assert sample("dead_letters_total", topic="calls") - dead == 1
    assert sample("commit_seconds_count", table="weights") >= 1
    worker.leave()
    log.close()
