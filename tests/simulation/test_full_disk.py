"""A disk that fills under the worker: a clear error, no torn table, and it goes on when there is space."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.worker import Worker
from lake.config import Config
from lake.log import open_log
from lake.models import Models
from lake.query import open_lake
from lake.store import Store
from lake.tables import SCHEMAS
from tests.support.load import Shape, Texts, wave

SHAPE = Shape(groups=4, size=4, calls=6, context=400, output=100)
ROOM = 3 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of ROOM bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        sentence = "mounting a small tmpfs needs root: run the tests as root, or in `unshare -rm`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(sentence)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_it_waits_for_space_and_loses_nothing(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, store = open_log(f"sqlite://{tmp_path / 'log.db'}"), Store(str(small_disk / "lake"))
    Models.load()
    now = 0.0
    worker = Worker(log, store, Config(commit_every_s=0.01), clock=lambda: now)
    events = [e for number in range(2) for part in wave(number, SHAPE, Texts(number)) for e in part]
    log.append(events[: len(events) // 2])
    while worker.step(0.0, flush=True):
        pass
    ballast = small_disk / "ballast"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    ballast.write_bytes(bytes(max(0, free - (128 << 10))))
    log.append(events[len(events) // 2 :])
    with caplog.at_level(logging.WARNING, "headrace.worker"):
        for _ in range(20):
            worker.step(0.0, flush=True)
            now += 20.0
    assert "no space left" in caplog.text
    assert "trying again" in caplog.text
    held = Store(str(small_disk / "lake")).table("events/calls", SCHEMAS["calls"]).read()
    assert len(set(held["event_id"].to_pylist())) == held.num_rows < sum(e.TOPIC == "calls" for e in events)

    ballast.unlink()
    while worker.step(0.0, flush=True) or worker.lag()["calls", 0]:
        now += 20.0
    worker.step(0.0, flush=True)
    for topic in ("calls", "executions", "scores"):
        rows = store.table(f"events/{topic}", SCHEMAS[topic]).read()
        assert sorted(rows["event_id"].to_pylist()) == sorted(e.event_id for e in events if topic == e.TOPIC)
    lake = open_lake(small_disk / "lake")
    assert {name: t.num_rows for name, t in lake.audit().items() if t.num_rows} == {}
    assert lake.rows("select count(*) as n from groups where state = 'READY'") == [{"n": 8}]
    worker.leave()
    log.close()
