"""Lake -> log: a log filled again from the event tables, every record at its old offset.

    events/TOPIC, dead_letters -> records by (partition, offset) -> Log.restore
                 holes -> log.gap

A restored log ends where the lake's commits say that they read to, so the ingest worker goes on with
the offsets that the lake holds.  What was in the old log and is no event (repeats, which ingestion left
out) comes back as a gap.  Routed experts are in blobs alone: pieces that restored calls refer to are carried
from the old blobs to the new, where these are others.  Memory is bounded: rows come from the tables in the
order of their offsets by `lake.scan`, and a batch of records is written before the next is made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from lake.blobs import Blobs
from lake.events import TOPICS, TOPICS_BY_GROUP, EventError
from lake.experts import read
from lake.layout import Run
from lake.log import Log, Partition, Record, open_log, partition_of
from lake.log_common import PARTITIONS_MAX
from lake.rows import dead_records, to_records
from lake.scan import in_offset_order
from lake.store import Store
from lake.tables import SCHEMAS, app_id
from lake.wire import GAP, SCHEMA_VERSION, Headers

BATCH_RECORDS, BATCH_BYTES = 2000, 8 << 20
"""Written at once: what the log's own readers give at once."""

Watch = Callable[[int, int], None]
"""watch(done, all): offsets."""


class CannotRestore(ValueError):
    """A lake that does not fill this log: what is wrong, and what to do."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore found in the lake: `records` with gaps and dead letters; `written` of them now.

    Pieces of routed experts, where the log's blobs are not those they lie in: `carried`, and `lost`, which
    are not where they should be, or where nobody said.
    """

    records: int
    gaps: int
    dead_letters: int
    written: int
    experts_carried: int = 0
    experts_lost: int = 0


def ends_in(store: Store) -> dict[Partition, int]:
    """How far the lake has read each partition of the log; of those that it has read anything of."""
    tables = [(t, store.existing(f"events/{t}")) for t in TOPICS]
    dead = store.existing("events/dead_letters")
    ends: dict[Partition, int] = {}
    for topic, table in tables:
        for partition in range(PARTITIONS_MAX if topic in TOPICS_BY_GROUP else 1):
            name = app_id(topic, partition)
            found = [t.offset(name) for t in (table, dead) if t is not None]  # a dead letter comes first
            end = max((at for at in found if at is not None), default=0)
            if end:
                ends[topic, partition] = end
    return ends


def _fits(store: Store) -> Callable[[int], bool]:
    """Tells whether a log of so many partitions puts every group where the lake says that it lay."""
    table = store.existing("events/groups")
    rows = (
        SCHEMAS["groups"].empty_table()
        if table is None
        else table.read(columns=["group_id", "log_partition"])
    )
    lay = set(zip(rows["group_id"].to_pylist(), rows["log_partition"].to_pylist(), strict=True))
    least = 1 + max((p for _, p in ends_in(store)), default=0)
    return lambda partitions: (
        partitions >= least and all(partition_of(group, partitions) == at for group, at in lay)
    )


def partitions_in(store: Store) -> int:
    """The partitions of the log that a lake was made from: the fewest that put each group where it lay.

    Raises CannotRestore where no number of partitions does.
    """
    fits = _fits(store)
    for partitions in range(1, PARTITIONS_MAX + 1):
        if fits(partitions):
            return partitions
    raise CannotRestore(
        f"{store.root}: no log of 1 to {PARTITIONS_MAX} partitions puts its groups where they lay; "
        "was it written from several logs?"
    )


def opened(path: str, store: Store, into: str | None, blobs: str | None) -> Log:
    """The log to fill from the lake of `path` (a run's folder, or a lake): `into`, or the run's own.

    A log that is new gets as many partitions as the lake's had.  Raises CannotRestore.
    """
    run = Run(Path(path))
    config = run.config() if "://" not in path and run.config_file.is_file() else None
    if config is not None:
        into, blobs = into or run.log_url(config), blobs or run.blobs(config)
    if into is None:
        raise CannotRestore(f"{path} is a lake, not a run: say by --into LOGURL which log is to be filled")
    if "partitions=" not in into:
        into += f"{'&' if '?' in into else '?'}partitions={partitions_in(store)}"
    return open_log(into, Blobs(blobs) if blobs else None)


def old_blobs(path: str) -> Blobs | None:
    """Where the run of this folder kept its blobs; None for a lake, which does not say."""
    run = Run(Path(path))
    there = "://" not in path and run.config_file.is_file()
    return Blobs(run.blobs(run.config())) if there else None


def restore(
    store: Store, log: Log, watch: Watch = lambda _done, _all: None, old: Blobs | None = None
) -> Restored:
    """Fill a log from a lake.  Nobody else may append meanwhile.  `old`: blobs that the lake refers to.

    Begun again after an interruption it compares what is there, and goes on.  Raises CannotRestore and
    lake.restoring.Misplaced (ValueErrors) where the log is another one or holds other records,
    EventError for a row that cannot be an event, LogUnavailable.
    """
    ends = ends_in(store)
    if not ends:
        raise CannotRestore(f"{store.root} holds no events; give a run, or the lake of one")
    partitions = log.partitions("calls")
    if not _fits(store)(partitions):
        raise CannotRestore(
            f"{store.root} comes from a log of {partitions_in(store)} partitions, this one has {partitions}; "
            f"restore into a new log with ?partitions={partitions_in(store)}"
        )
    counts = dict.fromkeys(Restored.__struct_fields__, 0)
    total = sum(ends.values())
    for (topic, partition), end in ends.items():
        records = _records(store, log, (topic, partition), counts, old)
        for batch in _batches(_filled(records, topic, partition, end)):
            counts["written"] += log.restore(batch)
            counts["records"] += len(batch)
            counts["gaps"] += sum(r.headers.type == GAP for r in batch)
            watch(counts["records"], total)
    return Restored(**counts)


def _records(
    store: Store, log: Log, lane: Partition, counts: dict[str, int], old: Blobs | None
) -> Iterator[Record]:
    """Events and dead letters of one partition, by offset; the latter are counted."""
    topic, partition = lane

    def dead() -> Iterator[Record]:
        for rows in _rows(store, "dead_letters", {"log_partition": partition, "topic": topic}):
            counts["dead_letters"] += rows.num_rows
            yield from dead_records(rows)

    def events() -> Iterator[Record]:
        for rows in _rows(store, topic, {"log_partition": partition}):
            if "experts" in rows.column_names:
                _carry_experts(rows["experts"], old, log.blobs, counts)
            yield from to_records(topic, rows, log.blobs)

    return heapq.merge(events(), dead(), key=lambda record: record.offset)


def _carry_experts(
    references: pa.ChunkedArray, old: Blobs | None, new: Blobs | None, counts: dict[str, int]
) -> None:
    """The pieces that rows of `calls` refer to, before the records that name them."""
    if old is not None and new is not None and old.root == new.root:
        return
    for reference in filter(None, references.to_pylist()):
        if old is None or new is None:
            counts["experts_lost"] += 1
            continue
        try:
            new.put(read(old, reference))
            counts["experts_carried"] += 1
        except EventError:  # missing or damaged: what the call said is in the lake, and comes back
            counts["experts_lost"] += 1


def _rows(store: Store, name: str, where: Mapping[str, Any]) -> Iterable[pa.Table]:
    table = store.existing(f"events/{name}")
    return in_offset_order(table, where) if table is not None else ()


def _filled(records: Iterator[Record], topic: str, partition: int, end: int) -> Iterator[Record]:
    """The records with a gap at every offset below `end` that has none."""
    at, now = 0, 0
    for record in records:
        if not at <= record.offset < end:
            raise CannotRestore(
                f"events/{topic} has a row at offset {record.offset} of partition {partition} where {at} to "
                f"{end} are to come: the table is damaged: make it again by `headrace lake rebuild`"
            )
        yield from (_gap(topic, partition, offset, now) for offset in range(at, record.offset))
        yield record
        at, now = record.offset + 1, record.appended_us
    yield from (_gap(topic, partition, offset, now) for offset in range(at, end))


def _gap(topic: str, partition: int, offset: int, appended_us: int) -> Record:
    name = f"gap:{topic}:{partition}:{offset}"  # as a key too: compaction keeps what stands alone
    return Record(topic, partition, offset, name, Headers(GAP, SCHEMA_VERSION, name), b"", appended_us)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.value)
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
