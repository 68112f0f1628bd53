"""The log: the only truth of a run.

    sqlite:///path/to/log.db      embedded, many processes on one machine
    kafka://host:port[,host:port]/PREFIX[?partitions=4]      Apache Kafka, topics named PREFIX.calls, ...

Both pass one contract suite (`tests/contract/test_log.py`).

Errors:

    LogError
    +-- LogUnavailable     the log cannot be reached now; trying again may help
    +-- LogCorrupt         the log holds what it must not
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from lake.events import Event
from lake.wire import Headers

if TYPE_CHECKING:
    from lake.blobs import Blobs

Partition = tuple[str, int]
"""(topic, partition)."""


class LogError(Exception):
    """The log could not do what was asked."""


class LogUnavailable(LogError):
    """The log cannot be reached now; trying again may help."""


class LogCorrupt(LogError):
    """The log holds what it must not."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as it lies in the log.  `appended_us` is the log's own clock."""

    topic: str
    partition: int
    offset: int
    key: str
    headers: Headers
    value: bytes
    appended_us: int


class Reader(Protocol):
    """Reads from given offsets on; knows where it stands.  Not shared between threads."""

    def poll(self, wait_s: float, records_max: int = 2000, bytes_max: int = 8 << 20) -> list[Record]:
        """Records in offset order within each partition, as soon as there is one.

        Empty after `wait_s` seconds (0 <= wait_s) without any.  May return less than asked for,
        and over `bytes_max` by one record a partition at most.  Raises LogUnavailable.
        """

    def positions(self) -> dict[Partition, int]:
        """The offset of the next record to come, for each partition read."""

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Go on from these offsets."""

    def lag(self) -> dict[Partition, int]:
        """Records not yet returned (an upper bound where offsets have gaps)."""

    def close(self) -> None: ...


class Log(Protocol):
    """Appends and reads; safe to use from several threads and from several processes at once."""

    blobs: Blobs | None
    """Where the fields lie that are too large for a record; None: such events are refused."""

    def append(self, events: Sequence[Event]) -> list[tuple[str, int, int]]:
        """Write events, in order; (topic, partition, offset) of each.

        Returns after all of them are acknowledged; never drops, never buffers without a bound.
        Raises EventError (nothing is written) for a bad event, LogUnavailable when the log could
        not acknowledge (then some may be written: append the same events again, readers remove
        duplicates by event id).
        """

    def append_raw(self, topic: str, key: str, headers: Headers, value: bytes) -> int:
        """Write one record as it is, checked by nobody (tests of bad records)."""

    def restore(self, records: Sequence[Record]) -> int:
        """Write records of an older log where they lay: at their offsets, with their `appended_us`.

        The records of a partition follow each other from its end on.  Those below its end must lie
        there already, equal, and are left out: a restore that was interrupted is begun again.  How
        many were written.  Raises lake.restoring.Misplaced (a ValueError) where a record cannot lie
        there, LogUnavailable.  Nobody else may append meanwhile.
        """

    def reader(self, start: Mapping[Partition, int]) -> Reader:
        """A reader of these partitions from these offsets on (0: the beginning)."""

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic."""

    def begin_offsets(self, topic: str) -> dict[int, int]:
        """For each partition the offset of its oldest record: retention moves it on."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """For each partition the offset that the next record will have."""

    def close(self) -> None: ...


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key: FNV-1a over its UTF-8 bytes, the same in every process and log."""
    h = 0xCBF29CE484222325
    for byte in key.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h % partitions


def open_log(url: str, blobs: Blobs | None = None) -> Log:
    """The log at a URL, created where it does not exist; large fields of its events go into `blobs`.

    A run's own log is opened by `Run.open_log`.  Raises ValueError for another scheme.
    """
    scheme = url.split("://", 1)[0]
    if scheme == "sqlite":
        from lake.log_sqlite import SqliteLog

        return SqliteLog(url, blobs=blobs)
    if scheme == "kafka":
        try:
            from lake.log_kafka import KafkaLog
        except ModuleNotFoundError as error:
            raise ValueError(f"log {url!r}: {error}; pip install 'headrace[kafka]'") from error
        return KafkaLog(url, blobs=blobs)
    raise ValueError(f"log {url!r}: use sqlite:///path/to/log.db or kafka://host:port/prefix")


def now_us() -> int:
    """Microseconds since 1970 (UTC): the clock of events."""
    return time.time_ns() // 1000
