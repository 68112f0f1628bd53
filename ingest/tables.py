"""Log -> event tables: each event once, and the log's offsets in the commit that holds its rows.

    records -> decode -> new rows -> one commit a topic, with {log/TOPIC/PARTITION: next offset}
                  \\-> dead_letters (bytes, offset, reason), committed before its topic

Stop at any point and start again: a topic's table says where to go on.  Rows and offsets are one
commit; a dead letter whose topic was not committed yet is recognised by the offset that
`dead_letters` carries, and not written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from lake.events import TOPICS, Event, EventError
from lake.log import Log, LogUnavailable, Partition, Record
from lake.store import Store, Table
from lake.tables import DEAD_LETTERS, SCHEMAS, to_dead_letters, to_table
from lake.wire import decode

SEEN_MAX = 1_000_000
"""Event ids remembered to drop repeats: a producer repeats itself within moments of a crash."""
READ_WAIT_S = 30.0
"""A log that holds more answers a read in milliseconds; a broker that changes leaders in seconds."""


def app_id(topic: str, partition: int) -> str:
    """The name under which a table's commit carries the offset of a partition."""
    return f"log/{topic}/{partition}"


class Seen:
    """The newest event ids, bounded: `first(id)` is True once an id."""

    def __init__(self, ids: Iterable[str], maximum: int = SEEN_MAX) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._maximum = maximum
        for event_id in ids:
            self.first(event_id)

    def first(self, event_id: str) -> bool:
        if event_id in self._ids:
            return False
        self._ids[event_id] = None
        if len(self._ids) > self._maximum:
            self._ids.popitem(last=False)
        return True


class EventTables:
    """Writes the event tables of one log into one lake.

    Guarantees: an event is in its table once however often it is read or was appended; a record
    that does not decode is in `dead_letters` once and stops nothing; a second writer of the same
    partitions is refused with `Fenced`, never mixed in.
    """

    def __init__(self, log: Log, store: Store, topics: Sequence[str] = TOPICS) -> None:
        self.topics = tuple(topics)
        self._tables: dict[str, Table] = {t: store.table(f"events/{t}", SCHEMAS[t]) for t in self.topics}
        self._dead = store.table("events/dead_letters", DEAD_LETTERS)
        self._partitions = [(t, p) for t in self.topics for p in range(log.partitions(t))]
        self._offsets = {(t, p): self._tables[t].offset(app_id(t, p)) for t, p in self._partitions}
        self._seen = {t: Seen(self._newest_ids(t)) for t in self.topics}

    def _newest_ids(self, topic: str) -> list[str]:
        table = self._tables[topic].read(columns=["event_id"])
        ids: list[str] = table["event_id"].slice(max(0, table.num_rows - SEEN_MAX)).to_pylist()
        return ids

    def positions(self) -> dict[Partition, int]:
        """Where to read on: the next offset of every partition."""
        return {p: offset or 0 for p, offset in self._offsets.items()}

    def table(self, topic: str) -> Table:
        return self._tables[topic]

    def commit(self, records: Sequence[Record]) -> dict[str, pa.Table]:
        """Write records (in offset order within a partition); the new rows of each topic.

        Durable when it returns.  Raises Fenced for a zombie writer.
        """
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        return {topic: self._commit_topic(topic, part) for topic, part in by_topic.items()}

    def _commit_topic(self, topic: str, records: Sequence[Record]) -> pa.Table:
        fresh = [r for r in records if r.offset >= (self._offsets[topic, r.partition] or 0)]
        good: list[tuple[Record, Event]] = []
        refused: list[tuple[Record, str]] = []
        for record in fresh:
            try:
                event = decode(record.headers, record.value)
                if topic != event.TOPIC:
                    raise EventError(f"{record.headers.event_id}: {event.TYPE} does not belong into {topic}")
            except EventError as error:
                refused.append((record, str(error)))
                continue
            if self._seen[topic].first(record.headers.event_id):
                good.append((record, event))
        rows = to_table(topic, good)
        ends = {r.partition: r.offset + 1 for r in fresh}
        if not ends:
            return rows
        self._bury(topic, refused)
        self._tables[topic].append(
            rows,
            {app_id(topic, p): end for p, end in ends.items()},
            {app_id(topic, p): self._offsets[topic, p] for p in ends},
        )
        for p, end in ends.items():
            self._offsets[topic, p] = end
        return rows

    def _bury(self, topic: str, refused: Sequence[tuple[Record, str]]) -> None:
        """Dead letters go first: a crash before the topic's commit finds them by their offset."""
        new = [
            (r, why) for r, why in refused if r.offset >= (self._dead.offset(app_id(topic, r.partition)) or 0)
        ]
        if new:
            ends = {app_id(topic, r.partition): r.offset + 1 for r, _ in new}
            self._dead.append(to_dead_letters(new), ends)


def copy_all(log: Log, store: Store, *, records_max: int = 20_000) -> EventTables:
    """Write every event that the log holds now, and return: the whole lake from the log alone.

    Raises LogUnavailable when the log stops answering.
    """
    tables = EventTables(log, store)
    ends = {(t, p): end for t in tables.topics for p, end in log.end_offsets(t).items()}
    reader = log.reader(tables.positions())
    try:
        pending: list[Record] = []
        while any(reader.positions()[p] < end for p, end in ends.items()):
            more = reader.poll(READ_WAIT_S, records_max)
            if not more:
                raise LogUnavailable(
                    f"the log gave nothing in {READ_WAIT_S:g} s before its end {ends}, "
                    f"reading from {reader.positions()}; check the broker and run again"
                )
            pending += more
            if len(pending) >= records_max:
                tables.commit(pending)
                pending = []
        tables.commit(pending)
    finally:
        reader.close()
    return tables
