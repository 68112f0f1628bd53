"""Reading a log in Kafka: a consumer without a group, told where to begin."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from kafka.errors import KafkaError

from lake.kafka_cluster import BATCH_BYTES_MAX, Cluster
from lake.log import LogUnavailable, Partition, Record
from lake.log_common import check_partitions, check_positions
from lake.wire import Headers

FETCH_BYTES = 8 << 20  # buffered ahead for each broker, compressed
SLICE_S = 1.0  # of a wait: between two of them the brokers are looked after
LOOK_S = 0.01  # a poll of kafka-python without any wait returns nothing
PROBE_EVERY_S = 5.0  # how long a silent reader goes without asking how far the log is (1.4 ms)
PROBE_S = 1.0
APPENDED_US = "appended_us"  # header of a restored record: when the log that was lost stamped it


def _number(header: bytes) -> int | None:
    """The whole number in a header; None for anything else, also for one of more than 64 bits."""
    return int(header) if header.isdigit() and len(header) <= 18 else None


def _record(prefix: str, message: Any) -> Record:
    """The record of a message, also of one that another program wrote: `decode` refuses that later."""
    headers = dict(message.headers)
    appended_us = _number(headers[APPENDED_US] or b"") if APPENDED_US in headers else None
    return Record(
        topic=message.topic.removeprefix(prefix + "."),
        partition=message.partition,
        offset=message.offset,
        key=(message.key or b"").decode(errors="replace"),
        headers=Headers(
            type=(headers.get("type") or b"").decode(errors="replace"),
            schema=_number(headers.get("schema") or b"") or 0,
            event_id=(headers.get("event_id") or b"").decode(errors="replace"),
        ),
        value=message.value or b"",
        appended_us=1000 * message.timestamp if appended_us is None else appended_us,
    )


class KafkaReader:
    """Reads partitions from given offsets on; what it fetched beyond a poll it keeps for the next.

    A poll may take LOOK_S or PROBE_S longer than its `wait_s`.  Where no broker answers, or records
    are there and do not arrive, for the log's `wait_s`, it raises LogUnavailable; it goes on from the
    same positions when it is polled again.
    """

    def __init__(self, cluster: Cluster, counts: Mapping[str, int], start: Mapping[Partition, int]) -> None:
        check_partitions(counts, start)
        self._cluster = cluster
        self._positions: dict[Partition, int] = dict(start)
        self._fetched: deque[Record] = deque()
        self._astray = False  # the consumer may stand elsewhere than we do
        self._heard = self._probed = time.monotonic()  # last sign that nothing is wrong; last probe
        with cluster.explained("opening a reader"):
            self._consumer = cluster.consumer(
                fetch_max_bytes=FETCH_BYTES, max_partition_fetch_bytes=BATCH_BYTES_MAX
            )
        try:
            self._consumer.assign([cluster.lane(p) for p in start])
            self.seek(start)
        except BaseException:
            self.close()
            raise

    def poll(self, wait_s: float, records_max: int = 2000, bytes_max: int = 8 << 20) -> list[Record]:
        deadline = time.monotonic() + wait_s
        while not self._fetched:
            left = deadline - time.monotonic()
            self._fetch(min(max(left, LOOK_S), SLICE_S), records_max)
            if left <= 0:
                break
        records: list[Record] = []
        room = bytes_max
        while self._fetched and room > 0 and len(records) < records_max:
            record = self._fetched.popleft()
            self._positions[record.topic, record.partition] = record.offset + 1
            room -= len(record.value)
            records.append(record)
        return records

    def _fetch(self, wait_s: float, records_max: int) -> None:
        """Wait for messages, at most `wait_s`, and keep them; look after the brokers where none come."""
        if not self._positions:
            time.sleep(wait_s)
            return
        with self._cluster.explained("reading"):
            if self._astray:
                self._place(self._positions)
            self._astray = True
            found = self._consumer.poll(timeout_ms=int(1000 * wait_s), max_records=records_max)
            self._astray = False
        for messages in found.values():
            self._fetched.extend(_record(self._cluster.prefix, m) for m in messages)
        now = time.monotonic()
        if found:
            self._heard = self._probed = now
            return
        self._skip_gaps()
        if now - self._probed > PROBE_EVERY_S:
            self._probe(now)

    def _skip_gaps(self) -> None:
        """Follow the consumer over offsets that compaction left empty: no record tells us of those."""
        for partition, at in self._positions.items():
            reached = self._consumer.position(self._cluster.lane(partition), timeout_ms=int(1000 * PROBE_S))
            if reached is not None and reached > at:
                self._positions[partition] = reached

    def _probe(self, now: float) -> None:
        """Nothing came for a while: is there nothing, or does nobody answer?"""
        try:
            behind = sum(lag > 0 for lag in self._lag(PROBE_S).values())
            wrong = f"{behind} partitions hold records that do not arrive; open a new reader"
        except KafkaError as error:
            behind, wrong = 1, f"no broker answers ({error}); see that they run, then poll again"
        self._probed = time.monotonic()
        if not behind:
            self._heard = now
        elif now - self._heard > self._cluster.wait_s:
            self._heard = self._probed  # each raise has its own wait before it
            raise LogUnavailable(f"{self._cluster}: reading: for {self._cluster.wait_s:g} s, {wrong}")

    def positions(self) -> dict[Partition, int]:
        return dict(self._positions)

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Go on from these offsets.  Raises as `KafkaLog.reader` does, and then stays where it was."""
        unread = [lane for lane in positions if lane not in self._positions]
        if unread:
            raise ValueError(f"seek to {unread}: this reader reads {sorted(self._positions)}")
        if not positions:
            return
        with self._cluster.explained("seeking"):
            lanes = {self._cluster.lane(p): p for p in positions}
            wait_ms = self._cluster.wait_ms
            begins = self._consumer.beginning_offsets(list(lanes), timeout_ms=wait_ms)
            ends = self._consumer.end_offsets(list(lanes), timeout_ms=wait_ms)
        begins, ends = ({lanes[p]: at for p, at in offsets.items()} for offsets in (begins, ends))
        check_positions(str(self._cluster), positions, begins, ends)
        self._positions.update(positions)
        with self._cluster.explained("seeking"):
            self._place(self._positions)

    def _place(self, positions: Mapping[Partition, int]) -> None:
        """Bring the consumer to these positions; what it had fetched is fetched again."""
        self._fetched.clear()
        for lane, offset in positions.items():
            self._consumer.seek(self._cluster.lane(lane), offset)

    def _lag(self, wait_s: float) -> dict[Partition, int]:
        lanes = {self._cluster.lane(p): p for p in self._positions}
        ends = self._consumer.end_offsets(list(lanes), timeout_ms=int(1000 * wait_s)) if lanes else {}
        return {lanes[p]: end - self._positions[lanes[p]] for p, end in ends.items()}

    def lag(self) -> dict[Partition, int]:
        with self._cluster.explained("asking for offsets"):
            return self._lag(self._cluster.wait_s)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)
