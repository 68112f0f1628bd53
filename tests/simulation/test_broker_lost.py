"""Three brokers, one killed with SIGKILL while 100,000 events are ingested: none lost, none twice."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake.events import Event, ToolCalled
from lake.log import Log
from lake.query import open_lake
from tests.support import kafka
from tests.support.workers import Workers, a_run, rows, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
EVENTS, BATCH = 100_000, 1000


@pytest.fixture
def three(tmp_path: Path) -> Iterator[kafka.Broker]:
    with kafka.running(tmp_path / "brokers", brokers=3) as broker:
        yield broker


def batch(first: int) -> list[Event]:
    return [
        ToolCalled(
            time_us=n, group_id=f"g-{n % 64:06d}", execution_id=f"e-{n % 512}", tool_call_id=str(n),
            call_id=None, name="bench", arguments=b"{}", result=str(n).encode(), started_us=n, stopped_us=n,
        )
        for n in range(first, first + BATCH)
    ]  # fmt: skip


def digest(ids: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def append_all(log: Log, halfway: threading.Event) -> None:
    for first in range(0, EVENTS, BATCH):
        if first == EVENTS // 2:
            halfway.set()
        log.append(batch(first))


@pytest.mark.timeout(420)
def test_no_event_is_lost_or_twice(three: kafka.Broker, tmp_path: Path) -> None:
    run = a_run(
        tmp_path / "run",
        f"log=kafka://{three.address}/hundred?partitions=4&replication=3",
        "commit_every_s=0.5",
    )
    log = run.open_log()
    halfway = threading.Event()
    appender = threading.Thread(target=append_all, args=(log, halfway))
    with Workers(run) as workers:
        workers.start()
        workers.start()
        appender.start()
        assert halfway.wait(120)
        three.control("kill", "2")
        appender.join(180)
        assert not appender.is_alive()

        until(lambda: rows(run, "tools", ["event_id"]).num_rows >= EVENTS, 120)
        workers.stop()
    found = open_lake(run.path).sql("select event_id, result from event_tools").fetchall()
    assert len(found) == EVENTS
    wanted = [e.event_id for first in range(0, EVENTS, BATCH) for e in batch(first)]
    assert digest([i for i, _ in found]) == digest(wanted)
    assert all(i.endswith(f":tool:{r.decode()}") for i, r in found)
    log.close()
