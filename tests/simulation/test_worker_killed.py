"""The ingest worker killed at every named failure point: each event once, each group derived once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pytest

from ingest.rederive import derive_set, fresh_lake
from lake.config import Config
from lake.digest import table_digest
from lake.events import Event, GroupReady
from lake.layout import Run
from lake.log import Log, open_log
from lake.query import open_lake
from lake.store import Store
from lake.tables import SCHEMAS
from lake.wire import Headers, decode
from tests.support.run_events import finished_group, ids

POINTS = ("store.before-write", "store.after-write", "store.before-commit", "store.after-commit")
GROUPS = 2 * len(POINTS)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(Config(commit_every_s=0.05)))
    return run


def events_of(log: Log, topic: str) -> list[Event]:
    reader = log.reader({(topic, p): 0 for p in range(log.partitions(topic))})
    found = []
    while records := reader.poll(0.2):
        found += [decode(r.headers, r.value) for r in records]
    reader.close()
    return found


def work(run: Run, log: Log, groups: set[str], kill_at: str | None = None) -> int:
    """Run a worker until it dies or has announced these groups; its exit status."""
    environment = dict(os.environ) | ({"HEADRACE_KILL_AT": kill_at} if kill_at else {})
    worker = subprocess.Popen(
        [sys.executable, "-m", "ingest.worker", "--run", str(run.path)], env=environment
    )
    until = time.monotonic() + 60
    while worker.poll() is None and time.monotonic() < until:
        if {e.group_id for e in events_of(log, "groups") if isinstance(e, GroupReady)} >= groups:
            break
    worker.send_signal(signal.SIGTERM)
    return worker.wait(30)


@pytest.mark.slow
def test_killed_at_every_point_each_event_is_once_and_each_group_is_derived_once(run: Run) -> None:
    log = open_log(run.log_url(run.config()))
    expected: list[Event] = []
    for number, (point, at) in enumerate((p, n) for p in POINTS for n in (2, 7)):
        expected += finished_group(number)
        log.append(finished_group(number))
        log.append(finished_group(number)[:3])  # a producer that repeats itself
        assert work(run, log, {"none"}, f"{point}:{at}") == -signal.SIGKILL
    bad = log.append_raw("calls", "g-000000", Headers("model.called", 1, "x:0"), b"\xc1 no msgpack")
    groups = {f"g-{n:06d}" for n in range(GROUPS)}
    assert work(run, log, groups) == 0

    store = Store(run.lake)
    for topic in ("calls", "executions", "scores", "groups"):
        rows = store.table(f"events/{topic}", SCHEMAS[topic]).read()
        wanted = ids([e for e in expected if topic == e.TOPIC])
        found = [e for e in rows["event_id"].to_pylist() if not e.endswith(":ready")]
        assert sorted(found) == sorted(wanted)
    announced = [e.group_id for e in events_of(log, "groups") if isinstance(e, GroupReady)]
    assert set(announced) == groups
    lake = open_lake(run.path)
    (dead,) = lake.rows("from dead_letters")
    assert (dead["topic"], dead["log_offset"], dead["value"]) == ("calls", bad, b"\xc1 no msgpack")
    assert {name: t.num_rows for name, t in lake.audit().items() if t.num_rows} == {}
    counts = lake.rows("select count(*) as n, count(distinct execution_id) as d from weights")
    assert counts == [{"n": 4 * GROUPS, "d": 4 * GROUPS}]

    fresh = fresh_lake(log, run.path / "again", lambda _sentence: None)
    derive_set(fresh, run.config().admission, "default", sorted(groups), lambda _sentence: None)
    for name in ("nodes", "admitted", "segments", "trees", "weights"):
        first, second = (s.existing(f"sets/default/{name}") for s in (store, fresh))
        assert first is not None
        assert second is not None
        for group in sorted(groups):
            left, right = (t.filter(pc.equal(t["group_id"], group)) for t in (first.read(), second.read()))
            assert table_digest(left) == table_digest(right), (name, group)
    log.close()
