"""A log and a lake recorded before schema 2: every record is read, and makes the same rows and groups."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingest.materialise import TRAINED, digest_of_group
from ingest.rederive import derive_set
from ingest.tables import copy_all
from lake.events import TOPICS, GroupReady
from lake.layout import Run
from lake.log import Log, Record
from lake.query import open_lake
from lake.store import Store
from lake.tables import DEAD_LETTERS, SCHEMAS
from lake.wire import decode, event_of, size_of

GAINED = {"calls": {"place", "experts"}, "policy": {"transport", "took_us", "readback"}}
RECORDED = Path(__file__).parents[1] / "golden" / "recorded" / "v1.tar.xz"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("v1")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return Run(folder)


@pytest.fixture(scope="module")
def log(run: Run) -> Iterator[Log]:
    log = run.open_log()
    yield log
    log.close()


@pytest.fixture(scope="module")
def records(log: Log) -> list[Record]:
    start = {(t, p): 0 for t in TOPICS for p in range(log.partitions(t))}
    reader, found = log.reader(start), []
    while more := reader.poll(0.2):
        found += more
    reader.close()
    assert len(found) == sum(sum(log.end_offsets(t).values()) for t in TOPICS)
    return found


@pytest.fixture(scope="module")
def fresh(run: Run, log: Log) -> Store:
    """A lake made from that log by the code of today."""
    store = Store(str(run.path / "fresh"))
    copy_all(log, store)
    return store


def test_every_record_is_of_schema_1_and_decodes(log: Log, records: list[Record]) -> None:
    assert {r.headers.schema for r in records} == {1}
    events = [event_of(r, log.blobs) for r in records]
    assert [decode(r.headers, r.value) for r in records] == events
    assert [size_of(r) for r in records] == [len(r.value) for r in records]
    kinds = Counter(r.headers.type for r in records)
    assert {
        "model.called",
        "tool.called",
        "execution.scored",
        "group.ready",
        "step.committed",
    } <= kinds.keys()


def _content(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows, in an order of their own."""
    rows = table.sort_by([("log_partition", "ascending"), ("log_offset", "ascending")]).to_pylist()
    return [tuple(map(repr, row.values())) for row in rows]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_fresh_lake_holds_what_the_recorded_one_holds(run: Run, fresh: Store, topic: str) -> None:
    old = Store(run.lake).existing(f"events/{topic}")
    assert old is not None
    rows = fresh.table(f"events/{topic}", SCHEMAS[topic]).read()
    assert set(rows["schema"].to_pylist()) == {1}
    known = old.schema.names
    assert set(SCHEMAS[topic].names) - set(known) == {"schema"} | GAINED.get(topic, set())
    found, recorded = _content(rows.select(known)), _content(old.read(columns=known))
    assert recorded
    assert found == recorded


def test_nothing_of_it_is_a_dead_letter(fresh: Store) -> None:
    assert fresh.table("events/dead_letters", DEAD_LETTERS).read().num_rows == 0


def test_the_groups_are_derived_as_they_were_announced(
    run: Run, log: Log, records: list[Record], fresh: Store
) -> None:
    """`group.ready` carries the digest of the derived rows."""
    ready = [e for r in records if isinstance(e := event_of(r, log.blobs), GroupReady)]
    groups = sorted({e.group_id for e in ready})
    assert groups
    assert derive_set(fresh, run.config().admission, "default", groups, lambda _: None) == len(groups)
    lake = open_lake(fresh.root)
    assert {name: t.num_rows for name, t in lake.audit().items() if t.num_rows} == {}
    kept = {name: fresh.existing(f"sets/default/{name}") for name in TRAINED}
    for event in ready:
        rows = {name: table.read([event.group_id]) for name, table in kept.items() if table is not None}
        assert digest_of_group(rows, event.group_id) == event.digest
