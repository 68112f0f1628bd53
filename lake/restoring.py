"""Writing records back to where they lay: what both logs do alike in `restore`.

    records of an old log, in offset order -> those that the log lacks, checked

A restore that was interrupted is begun again from its first record: what lies in the log already is
compared, and left as it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from lake.log import LogUnavailable, Partition, Reader, Record
from lake.log_common import check_partitions

READ_WAIT_S = 30.0
"""A log that holds a record gives it in milliseconds; a broker that changes leaders takes seconds."""


class Misplaced(ValueError):
    """A record that cannot lie where it is to lie: which offset, what is there, what to do."""


class Readable(Protocol):
    """What is asked of a log here."""

    def partitions(self, topic: str) -> int: ...
    def end_offsets(self, topic: str) -> dict[int, int]: ...
    def reader(self, start: Mapping[Partition, int]) -> Reader: ...


def lacking(log: Readable, records: Sequence[Record]) -> list[Record]:
    """The records that the log lacks: every one, less those that lie below its ends already.

    Raises Misplaced for records of a partition that do not follow each other, whose first is past its
    end, or that differ from what lies at their offset; ValueError for a partition that is not there.
    """
    counts = {topic: log.partitions(topic) for topic in {r.topic for r in records}}
    check_partitions(counts, {(r.topic, r.partition) for r in records})
    ends = {(t, p): end for t in counts for p, end in log.end_offsets(t).items()}
    check_follow(records, ends)
    check_equal(log, [r for r in records if r.offset < ends[r.topic, r.partition]])
    return [r for r in records if r.offset >= ends[r.topic, r.partition]]


def check_follow(records: Sequence[Record], ends: Mapping[Partition, int]) -> None:
    """Raise Misplaced where records do not follow each other from the end, or from below it, on."""
    following: dict[Partition, int] = {}
    for r in records:
        lane = (r.topic, r.partition)
        at = following.get(lane, min(r.offset, ends[lane]))
        if r.offset != at:
            raise Misplaced(
                f"restore: record {r.offset} of {r.topic}/{r.partition} is given where {at} comes next; "
                "give the records in the order of their offsets, from the end of the partition on"
            )
        following[lane] = at + 1


def check_equal(log: Readable, records: Sequence[Record]) -> None:
    """Raise Misplaced where a record differs from the one that lies at its offset.

    One that compaction has removed since is no difference.
    """
    if not records:
        return
    start: dict[Partition, int] = {(r.topic, r.partition): r.offset for r in reversed(records)}
    stop: dict[Partition, int] = {(r.topic, r.partition): r.offset + 1 for r in records}
    wanted = {(r.topic, r.partition, r.offset): r for r in records}
    reader = log.reader(start)
    try:
        heard = time.monotonic()
        while any(reader.positions()[lane] < end for lane, end in stop.items()):
            found = reader.poll(1.0)
            if found:
                heard = time.monotonic()
            elif time.monotonic() - heard > READ_WAIT_S:
                raise LogUnavailable(
                    f"restore: the log gave nothing in {READ_WAIT_S:g} s after {reader.positions()}, though "
                    "it holds more; see whether it is up, then restore again: it goes on where it stopped"
                )
            for there in found:
                mine = wanted.get((there.topic, there.partition, there.offset), there)
                if mine != there:
                    raise Misplaced(
                        f"restore: the log holds another record at {there.offset} of {there.topic}/"
                        f"{there.partition} ({there.headers.type} {there.headers.event_id}, not "
                        f"{mine.headers.type} {mine.headers.event_id}); restore into an empty log"
                    )
    finally:
        reader.close()
