"""What both logs do alike: reading a log URL, laying out partitions, checking events and positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from lake.events import TOPICS, TOPICS_BY_GROUP, Event
from lake.log import LogCorrupt, Partition
from lake.wire import Headers, encode

if TYPE_CHECKING:
    from lake.blobs import Blobs

PARTITIONS_MAX = 64  # more than one machine has cores; a poll asks for the end of every partition it reads


class Entry(msgspec.Struct, frozen=True):
    """One record on its way into a log."""

    topic: str
    key: str
    headers: Headers
    value: bytes


def encoded(events: Iterable[Event], blobs: Blobs | None) -> list[Entry]:
    """Every event checked and encoded, what is too large for a record put into `blobs`.

    Raises EventError before any record can be written, LogUnavailable where the blobs do not answer.
    """
    return [Entry(event.TOPIC, event.key, *encode(event, blobs)) for event in events]


def url_options(url: str, known: Sequence[str]) -> tuple[str, dict[str, int]]:
    """What stands before the `?` of a log URL, and its options: whole numbers from 1 on.

    Raises ValueError for an option that is unknown, given twice, or no such number.
    """
    rest, _, query = url.partition("?")
    options: dict[str, int] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(f"log {url!r}: unknown option {name!r}; known: {', '.join(known)}")
        if name in options or not (text.isascii() and text.isdecimal()) or int(text) < 1:
            raise ValueError(f"log {url!r}: give {name} once, as a whole number from 1 on; {text!r} is given")
        options[name] = int(text)
    if options.get("partitions", 1) > PARTITIONS_MAX:
        raise ValueError(f"log {url!r}: partitions is {options['partitions']}, at most {PARTITIONS_MAX}")
    return rest, options


def partition_counts(partitions: int) -> dict[str, int]:
    """The number of partitions of each topic."""
    return {topic: partitions if topic in TOPICS_BY_GROUP else 1 for topic in TOPICS}


def count_of(counts: Mapping[str, int], topic: str) -> int:
    """The number of partitions of a topic.  Raises ValueError for a topic that no log has."""
    if topic not in counts:
        raise ValueError(f"no topic {topic!r}; the log has {', '.join(counts)}")
    return counts[topic]


def check_partitions(counts: Mapping[str, int], partitions: Iterable[Partition]) -> None:
    """Raise ValueError for a partition that the log does not have."""
    for topic, partition in partitions:
        if not 0 <= partition < count_of(counts, topic):
            raise ValueError(f"no partition {partition} of {topic}; it has {counts[topic]}, counted from 0")


def check_positions(
    log: str,
    positions: Mapping[Partition, int],
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> None:
    """Raise LogCorrupt where a reader cannot go on from a position without missing records.

    A position past the end was taken from another log, or this one lost records that somebody has
    already read: to wait there would skip the records that come to lie before it.
    """
    for (topic, partition), offset in positions.items():
        begin, end = begins[topic, partition], ends[topic, partition]
        if not begin <= offset <= end:
            raise LogCorrupt(
                f"{log}: asked for offset {offset} of {topic}/{partition}, which holds {begin} to {end}; "
                "the log lost records, or the offset comes from another log: "
                "restore the log, or read it from its beginning into a fresh folder"
            )
