"""The log in Apache Kafka, by kafka-python.

    kafka://host:port[,host:port]/PREFIX[?partitions=4&replication=1]

Topics are named PREFIX.calls, PREFIX.groups, ... and made when they are missing.

What is guaranteed:

- `append` returns after every in-sync replica has every record (acks=all).  That is their page
  cache: of three brokers one may be lost; one alone survives `kill -9`, but a power cut may cost it
  its last seconds.
- Retries inside the client neither double nor reorder records (idempotent producer); an append that
  raised LogUnavailable and is made again may double some, which readers remove by event id.
- At most RECORDS_IN_FLIGHT records and BYTES_IN_FLIGHT bytes wait in the client; more appends wait.
- Without progress for `wait_s` LogUnavailable is raised; the next call starts afresh.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from lake.blobs import Blobs
from lake.events import Event
from lake.kafka_cluster import BATCH_BYTES_MAX, Cluster
from lake.kafka_members import SESSION_S, Members
from lake.kafka_reader import APPENDED_US, KafkaReader
from lake.kafka_topics import create
from lake.log import LogError, LogUnavailable, Record, partition_of
from lake.log_common import Entry, check_partitions, count_of, encoded
from lake.metrics import appending
from lake.restoring import lacking
from lake.wire import Headers

WAIT_S = 30.0  # a lost broker is noticed after 9 s (its session), and its partitions move within 10 s more
# send() of kafka-python never waits and keeps whatever it is given: these bound it.  The bytes are twice
# what five requests of one batch hold, so that the connection never runs dry.
RECORDS_IN_FLIGHT = 10_000
BYTES_IN_FLIGHT = 8 << 20
RECORD_OVERHEAD_BYTES = 256  # headers and framing of a record
BATCH_BYTES = 512 << 10  # with LINGER_MS: a quarter of the CPU of the defaults
LINGER_MS = 5
MoreHeaders = Sequence[tuple[str, bytes]]
GRACE_S = 5.0  # the client itself gives a record up after wait_s; beyond that it forgot one


class Budget:
    """Records and bytes that may be in flight at once; `take` waits for room."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self.records, self.bytes = 0, 0  # in flight now
        self._records_max, self._bytes_max = records_max, bytes_max
        self._changed = threading.Condition()

    def _fits(self, size: int) -> bool:
        """A record larger than all of the room goes alone."""
        return not self.records or (self.records < self._records_max and self.bytes + size <= self._bytes_max)

    def take(self, size: int, wait_s: float) -> bool:
        """Take room for one record; False where there was none within `wait_s`."""
        with self._changed:
            fits = self._changed.wait_for(lambda: self._fits(size), max(0.0, wait_s))
            if fits:
                self.records += 1
                self.bytes += size
            return fits

    def give(self, size: int) -> None:
        with self._changed:
            self.records -= 1
            self.bytes -= size
            self._changed.notify_all()


def _close(producer: Any, wait_s: float) -> None:
    """Close a producer, with whatever it still holds after `wait_s`.

    Its own close() gives up where records are left, and would leave its thread trying for ever.
    """
    try:
        producer.close(timeout=wait_s)
    except (KafkaError, TimeoutError):
        producer._sender.force_close()
        producer._sender.join(wait_s)


class KafkaLog:
    """The log in Kafka; see the module for its guarantees.

    Threads share one object: one producer, one consumer that is asked for offsets (in turn), and a
    consumer for each reader.  Not across a fork: the child opens its own.
    """

    def __init__(self, url: str, wait_s: float = WAIT_S, blobs: Blobs | None = None) -> None:
        """Connect, and make the topics that are missing.

        Raises ValueError for a bad URL, bad settings of TLS or SASL (`lake.kafka_security`), or another
        number of partitions than the topics have; LogUnavailable where no broker answers within `wait_s`,
        LogError where it does not let us in.
        """
        self._cluster, options = Cluster.of(url, wait_s)
        self.blobs = blobs
        self._budget = Budget(RECORDS_IN_FLIGHT, BYTES_IN_FLIGHT)
        self._pid = os.getpid()
        self._closed = False
        self._producer: Any = None
        self._producer_lock = threading.Lock()
        self._asker: Any = None
        self._ask_lock = threading.Lock()
        self._counts = create(self._cluster, options.get("partitions"), options.get("replication", 1))

    def _check_open(self) -> None:
        if self._closed:
            raise LogError(f"{self._cluster}: closed; open it again")
        if os.getpid() != self._pid:
            raise LogError(f"{self._cluster}: opened before a fork; open it in the child")

    @contextmanager
    def _held(self, lock: threading.Lock) -> Iterator[None]:
        if not lock.acquire(timeout=self._cluster.wait_s):
            raise LogUnavailable(
                f"{self._cluster}: other threads are at it since {self._cluster.wait_s:g} s; try again"
            )
        try:
            self._check_open()
            yield
        finally:
            lock.release()

    # --------------------------------------------------------------------------------- appending
    def _connected(self) -> Any:
        """The producer, made at its first use and again after it failed."""
        with self._held(self._producer_lock):
            if self._producer is None:
                wait_ms = self._cluster.wait_ms
                self._producer = self._cluster.client(
                    KafkaProducer,
                    enable_idempotence=True,
                    acks="all",
                    compression_type="zstd",
                    linger_ms=LINGER_MS,
                    batch_size=BATCH_BYTES,
                    max_request_size=2 * BATCH_BYTES_MAX,
                    max_block_ms=wait_ms,
                    delivery_timeout_ms=max(wait_ms, LINGER_MS + self._cluster.request_ms),
                    allow_auto_create_topics=False,
                    metrics_enabled=False,
                )
            return self._producer

    def _drop(self, producer: Any) -> None:
        """Let go of a producer that failed: its sequence of batches may be broken."""
        with self._producer_lock:
            if self._producer is not producer:
                return
            self._producer = None
        _close(producer, 1.0)

    def append(self, events: Sequence[Event]) -> list[tuple[str, int, int]]:
        """See Log.append."""
        return self._write(encoded(events, self.blobs))

    def append_raw(self, topic: str, key: str, headers: Headers, value: bytes) -> int:
        count_of(self._counts, topic)
        size = len(value) + len(key) + RECORD_OVERHEAD_BYTES
        if size > BATCH_BYTES_MAX - RECORD_OVERHEAD_BYTES:  # the broker's refusal would end others' appends
            raise LogError(f"{self._cluster}: a record of {size} bytes; a topic takes {BATCH_BYTES_MAX}")
        ((_, _, offset),) = self._write([Entry(topic, key, headers, value)])
        return offset

    @appending("kafka")
    def _write(self, entries: Sequence[Entry]) -> list[tuple[str, int, int]]:
        if not entries:
            return []
        lanes = [(e.topic, partition_of(e.key, self._counts[e.topic])) for e in entries]
        offsets = self._acknowledged(entries, [p for _, p in lanes], [()] * len(entries))
        return [(*lane, offset) for lane, offset in zip(lanes, offsets, strict=True)]

    def _acknowledged(
        self, entries: Sequence[Entry], partitions: Sequence[int], more: Sequence[MoreHeaders]
    ) -> list[int]:
        """Write entries to these partitions, with more headers each; their offsets."""
        with self._cluster.explained(f"an append of {len(entries)} events"):
            producer = self._connected()
            try:
                futures = [
                    self._send(producer, entry, partition, headers)
                    for entry, partition, headers in zip(entries, partitions, more, strict=True)
                ]
                until = time.monotonic() + self._cluster.wait_s + GRACE_S
                return [future.get(timeout=max(0.0, until - time.monotonic())).offset for future in futures]
            except BaseException as error:
                self._drop(producer)
                if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
                    raise LogError(
                        f"{self._cluster}: a record is too large for its topic ({error}); raise its "
                        f"max.message.bytes to {BATCH_BYTES_MAX}"
                    ) from error
                raise

    def restore(self, records: Sequence[Record]) -> int:
        """See Log.restore.  Each record's `appended_us` goes into a header: the broker stamps its own."""
        new = lacking(self, records)
        if not new:
            return 0
        entries = [Entry(r.topic, r.key, r.headers, r.value) for r in new]
        more = [((APPENDED_US, str(r.appended_us).encode()),) for r in new]
        offsets = self._acknowledged(entries, [r.partition for r in new], more)
        for r, offset in zip(new, offsets, strict=True):
            if r.offset != offset:
                raise LogError(
                    f"{self._cluster}: restoring record {r.offset} of {r.topic}/{r.partition}, the broker "
                    f"put it at {offset}: somebody else appends; stop them and restore into a new prefix"
                )
        return len(new)

    def _send(self, producer: Any, entry: Entry, partition: int, more: MoreHeaders = ()) -> Any:
        """Hand one record to the client when there is room for it; its future."""
        size = len(entry.value) + len(entry.key) + RECORD_OVERHEAD_BYTES
        if not self._budget.take(size, self._cluster.wait_s):
            raise TimeoutError(f"{self._budget.records} records, {self._budget.bytes} bytes are in flight")
        head = entry.headers
        headers = [
            ("type", head.type.encode()),
            ("schema", str(head.schema).encode()),
            ("event_id", head.event_id.encode()),
            *more,
        ]
        topic = self._cluster.topic(entry.topic)
        try:
            future = producer.send(topic, entry.value, entry.key.encode(), headers, partition=partition)
        except BaseException:
            self._budget.give(size)
            raise
        future.add_both(lambda _: self._budget.give(size))
        return future

    # ----------------------------------------------------------------------------------- reading
    def reader(self, start: Mapping[tuple[str, int], int]) -> KafkaReader:
        """Raises ValueError for a partition that is not there, LogCorrupt for an offset not in the log."""
        self._check_open()
        check_partitions(self._counts, start)
        return KafkaReader(self._cluster, self._counts, start)

    def partitions(self, topic: str) -> int:
        return count_of(self._counts, topic)

    def begin_offsets(self, topic: str) -> dict[int, int]:
        return self._ask("beginning_offsets", topic)

    def end_offsets(self, topic: str) -> dict[int, int]:
        return self._ask("end_offsets", topic)

    def _ask(self, what: str, topic: str) -> dict[int, int]:
        lanes = [self._cluster.lane((topic, p)) for p in range(count_of(self._counts, topic))]
        with self._held(self._ask_lock), self._cluster.explained("asking for offsets"):
            if self._asker is None:
                self._asker = self._cluster.consumer()
            offsets = getattr(self._asker, what)(lanes, timeout_ms=self._cluster.wait_ms)
        return {lane.partition: offsets[lane] for lane in lanes}

    def members(self, group: str, instance: str | None = None, session_s: float = SESSION_S) -> Members:
        """This process as one of the workers `group`, who share out the lanes; see Members."""
        self._check_open()
        return Members(self._cluster, group, instance, session_s)

    def close(self) -> None:
        """Close what the log itself holds; readers and members stay open.  May be called twice."""
        self._closed = True
        with self._producer_lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            _close(producer, GRACE_S)
        with self._ask_lock:
            asker, self._asker = self._asker, None
        if asker is not None:
            asker.close(autocommit=False, timeout_ms=1000)
