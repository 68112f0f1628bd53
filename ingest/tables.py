"""Log -> event tables: each event once, and the log's offsets in the commit that holds its rows.

    records -> decode -> new rows -> one commit a topic, with {log/TOPIC/PARTITION: next offset}
                  \\-> dead_letters (bytes, offset, reason), committed before its topic

Stop at any point and start again: a topic's table says where to go on.  Rows and offsets are one
commit; a dead letter whose topic was not committed yet is recognised by the offset that
`dead_letters` carries, and not written again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from ingest.at_once import AtOnce
from ingest.lanes import partitions_of
from lake.events import TOPICS, TOPICS_BY_GROUP, Event, EventError
from lake.log import Log, LogUnavailable, Partition, Reader, Record
from lake.metrics import worker_metrics
from lake.portions import portions
from lake.store import Store, Table
from lake.tables import DEAD_LETTERS, SCHEMAS, app_id, are_sound, to_dead_letters, to_table
from lake.wire import event_of, size_of

SEEN_MAX = 250_000
"""Event ids remembered a topic to drop repeats: a producer repeats itself within moments of a crash."""
READ_WAIT_S = 30.0
"""A log that holds more answers a read in milliseconds; a broker that changes leaders in seconds."""
RECORD_BYTES = 500
"""What a record takes in memory beside its value, about."""
BATCH_BYTES = 32 << 20
"""Of records in one commit: large files read well, and small ones need little memory."""
COMMITS_AT_ONCE = 4
"""Topics committed at the same time: a commit waits for the disk more than it works."""


class Seen:
    """The newest event ids, from `maximum` to twice as many."""

    def __init__(self, ids: Iterable[str], maximum: int = SEEN_MAX) -> None:
        self._new: set[str] = set()
        self._old: set[str] = set()
        self._maximum = maximum
        self.add(ids)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._new or event_id in self._old

    def add(self, ids: Iterable[str]) -> None:
        self._new.update(ids)
        if len(self._new) >= self._maximum:
            self._old, self._new = self._new, set()


class EventTables:
    """Writes the event tables of some lanes of one log into one lake.

    Guarantees: an event is in its table once however often it is read or was appended (within SEEN_MAX
    events; the SQL drops repeats at any distance); a record that does not decode is in `dead_letters`
    once and stops nothing; a second writer of the same partitions is refused with `Fenced`, never mixed
    in.
    """

    def __init__(self, log: Log, store: Store, lanes: Iterable[int] | None = None) -> None:
        """`lanes` None: all of them."""
        self._blobs = log.blobs
        self._partitions = partitions_of(range(log.partitions("calls")) if lanes is None else lanes)
        self._tables: dict[str, Table] = {t: store.table(f"events/{t}", SCHEMAS[t]) for t in TOPICS}
        self._dead = {t: store.table("events/dead_letters", DEAD_LETTERS) for t in TOPICS}
        self._offsets = {(t, p): self._tables[t].offset(app_id(t, p)) for t, p in self._partitions}
        self._dead_offsets = {(t, p): self._dead[t].offset(app_id(t, p)) for t, p in self._partitions}
        self._seen = {t: Seen(self._newest_ids(t)) for t in {t for t, _ in self._partitions}}
        self._new: dict[str, list[pa.Table]] = {}
        self._metrics = worker_metrics()
        self._at_once = AtOnce(COMMITS_AT_ONCE)

    def _newest_ids(self, topic: str) -> list[str]:
        ids: list[str] = self._tables[topic].tail(["event_id"], SEEN_MAX)["event_id"].to_pylist()
        return ids

    def positions(self) -> dict[Partition, int]:
        """Where to read on: the next offset of every partition."""
        return {p: offset or 0 for p, offset in self._offsets.items()}

    def table(self, topic: str) -> Table:
        return self._tables[topic]

    def commit(self, records: Sequence[Record]) -> dict[str, pa.Table]:
        """Write records (in offset order within a partition); the new rows of each topic.

        What the records claim from blobs may be far larger than they: they are committed in portions of
        about BATCH_BYTES.  Durable when it returns.  Raises Fenced for a zombie writer, StoreFull and
        StoreUnavailable where the lake takes nothing now: call it again with the same records, and what
        was written already is left out of the tables and yet in the answer.
        """
        for portion in portions(records, _size_with_claims, 2 * BATCH_BYTES):
            self._commit(portion)
        new, self._new = self._new, {}
        return {topic: pa.concat_tables(tables) for topic, tables in new.items()}

    def _commit(self, records: Sequence[Record]) -> None:
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        if "groups" in by_topic:  # first: whoever reads an event of a group then finds the group
            self._commit_topic("groups", by_topic.pop("groups"))
        if len(by_topic) == 1:
            self._commit_topic(*by_topic.popitem())
            return
        self._at_once.each(self._commit_topic, by_topic.items())

    def _commit_topic(self, topic: str, records: Sequence[Record]) -> None:
        began = time.perf_counter()
        fresh = [r for r in records if r.offset >= (self._offsets[topic, r.partition] or 0)]
        if not fresh:
            return
        good, refused, repeats = self._decoded(topic, fresh, tokens=topic != "calls")
        rows = to_table(topic, good)
        if topic == "calls" and not are_sound(rows):  # all at once is a third of the time; now which?
            good, refused, repeats = self._decoded(topic, fresh, tokens=True)
            rows = to_table(topic, good)
        self._bury(topic, refused)
        ends = {r.partition: r.offset + 1 for r in fresh}
        self._tables[topic].append(
            rows,
            {app_id(topic, p): end for p, end in ends.items()},
            {app_id(topic, p): self._offsets[topic, p] for p in ends},
        )
        self._offsets |= {(topic, p): end for p, end in ends.items()}
        self._seen[topic].add(r.headers.event_id for r, _ in good)
        self._new.setdefault(topic, []).append(rows)
        if repeats:
            self._metrics.duplicates(topic, repeats)
        tokens = 0
        if topic == "calls":
            tokens = sum(pc.sum(rows[n]).as_py() or 0 for n in ("n_context", "n_output"))
        self._metrics.committed(
            topic,
            seconds=time.perf_counter() - began,
            rows=rows.num_rows,
            size_bytes=sum(len(r.value) for r in fresh),
            tokens=tokens,
        )

    def _decoded(
        self, topic: str, records: Sequence[Record], *, tokens: bool
    ) -> tuple[list[tuple[Record, Event]], list[tuple[Record, str]], int]:
        """The new events, the records that are none with the reason, and how many are repeats."""
        good: dict[str, tuple[Record, Event]] = {}
        refused: list[tuple[Record, str]] = []
        seen, repeats = self._seen[topic], 0
        for record in records:
            try:
                event = event_of(record, self._blobs, tokens=tokens)
            except EventError as error:
                refused.append((record, str(error)))
                continue
            if event is None:  # a gap: nothing happened
                continue
            event_id = record.headers.event_id
            if event_id in seen or event_id in good:
                repeats += 1
            else:
                good[event_id] = (record, event)
        pairs = list(good.values())
        if topic in TOPICS_BY_GROUP:  # as the file has them: sorting events moves no tokens
            pairs.sort(key=lambda pair: pair[1].key)
        return pairs, refused, repeats

    def _bury(self, topic: str, refused: Sequence[tuple[Record, str]]) -> None:
        """Dead letters go first: a crash before the topic's commit finds them by their offset."""
        stand = self._dead_offsets
        new = [(r, why) for r, why in refused if r.offset >= (stand[topic, r.partition] or 0)]
        if new:
            ends = {r.partition: r.offset + 1 for r, _ in new}
            self._dead[topic].append(
                to_dead_letters(new),
                {app_id(topic, p): end for p, end in ends.items()},
                {app_id(topic, p): stand[topic, p] for p in ends},
            )
            stand |= {(topic, p): end for p, end in ends.items()}
            self._metrics.dead_letters(topic, len(new))


def _size_with_claims(record: Record) -> int:
    return size_of(record) + RECORD_BYTES


def read_to(reader: Reader, ends: Mapping[Partition, int], records_max: int) -> Iterator[list[Record]]:
    """What a reader gives until it stands at `ends` or beyond.

    Raises LogUnavailable where records that the log says it has do not come.
    """
    while any(reader.positions()[p] < end for p, end in ends.items()):
        before = reader.positions()
        more = reader.poll(READ_WAIT_S, records_max)
        if not more and reader.positions() == before:
            raise LogUnavailable(
                f"the log gave nothing in {READ_WAIT_S:g} s before its end {dict(ends)}, "
                f"reading from {before}; check the broker and run again"
            )
        yield more


def copy_all(
    log: Log, store: Store, *, lanes: Iterable[int] | None = None, batch_bytes: int = BATCH_BYTES
) -> EventTables:
    """Write every event that the log holds now, and return: the whole lake from the log alone.

    Raises LogUnavailable when the log stops answering.
    """
    tables = EventTables(log, store, lanes)
    positions = tables.positions()
    ends = {(t, p): e for t in TOPICS for p, e in log.end_offsets(t).items() if (t, p) in positions}
    reader = log.reader(positions)
    with closing(reader):
        pending: list[Record] = []
        size = 0
        for records in read_to(reader, ends, 20_000):
            pending += records
            size += sum(len(r.value) + RECORD_BYTES for r in records)
            if size >= batch_bytes:  # in turn: a thread that writes meanwhile makes one core slower
                tables.commit(pending)
                pending, size = [], 0
        tables.commit(pending)
    return tables
