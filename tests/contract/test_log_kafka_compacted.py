"""Compaction on a real broker: what is superseded goes, everything else stays, and the gaps are passed."""

from __future__ import annotations

import time
import uuid

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from lake.events import CellEvent, Event, StepPlanned
from lake.follow import Follower
from lake.log import Record
from lake.log_kafka import KafkaLog
from lake.wire import decode
from tests.support import kafka
from tests.support.events import ONE_OF_EACH

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SMALL = {
    "segment.bytes": "1048576",
    "segment.ms": "1000",
    "min.compaction.lag.ms": "0",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
}
BOUND_S = 90.0  # the cleaner looks every 15 s


def heartbeat(cell: str, number: int) -> CellEvent:
    """Large, so that segments are full soon."""
    return CellEvent(
        time_us=number, cell=cell, session="s", change="heartbeat", detail=f"{number}:" + "x" * 40_000
    )


def plan(step: int) -> StepPlanned:
    (event,) = (e for e in ONE_OF_EACH if isinstance(e, StepPlanned))
    return StepPlanned(**{f: getattr(event, f) for f in event.__struct_fields__} | {"step": step})


def read(log: KafkaLog, topic: str) -> list[Record]:
    reader = log.reader({(topic, 0): 0})
    records: list[Record] = []
    while any(reader.lag().values()):
        records += reader.poll(0.5)
    assert reader.positions() == {(topic, 0): log.end_offsets(topic)[0]}
    reader.close()
    return records


def make_small(log: KafkaLog, *topics: str) -> None:
    admin = log._cluster.client(KafkaAdminClient)
    admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, log._cluster.topic(t), SMALL) for t in topics]
    )
    admin.close()


def test_only_what_is_superseded_goes_and_readers_pass_the_gaps(kafka_broker: kafka.Broker) -> None:
    log = KafkaLog(f"kafka://{kafka_broker.address}/compact-{uuid.uuid4().hex[:12]}")
    make_small(log, "cells", "policy")
    started = CellEvent(time_us=0, cell="a", session="s", change="started")
    written: list[Event] = [started]
    written += [heartbeat(cell, n) for n in range(1, 60) for cell in ("a", "b")]
    log.append(written)
    plans = [plan(step) for step in range(300)]
    log.append(plans)
    deadline = time.monotonic() + BOUND_S
    number = 60
    while len(records := read(log, "cells")) > len(written) // 2:
        assert time.monotonic() < deadline, f"{len(records)} of {len(written)} records are left"
        time.sleep(1.0)
        written.append(heartbeat("a", number))  # a segment is closed when it is written to
        log.append(written[-1:])
        log.append([plan(299 + number)])
        plans.append(plan(299 + number))
        number += 1
    offsets = [r.offset for r in records]
    assert offsets[-1] + 1 - offsets[0] > len(offsets), "there are gaps"
    left = [decode(r.headers, r.value) for r in records]
    newest = {e.key: e for e in written}
    assert {e.key: e for e in left} == newest, "the newest of each key, and all that are of no heartbeat"
    assert left[0] == started
    assert [decode(r.headers, r.value) for r in read(log, "policy")] == plans
    follower = Follower(log, ["cells"])
    caught = [e.event_id for e in follower.catch_up()]
    follower.close()
    later = [r.headers.event_id for r in read(log, "cells")]  # the broker may have gone on meanwhile
    known = [e.event_id for e in left]
    assert caught == [name for name in known if name in caught]
    assert {*later} <= {*caught}, "all of them, where the broker did not go on"
    middle = log.reader({("cells", 0): offsets[0] + 1})
    first = middle.poll(5.0)[0].offset
    still = next(r.offset for r in read(log, "cells") if r.offset > offsets[0])
    assert offsets[1] <= first <= still, "an offset that is gone is no error; nothing that is there is passed"
    middle.close()
    log.close()
