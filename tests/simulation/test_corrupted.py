"""10,000 corrupted records among good ones: none stops ingestion, each is a dead letter, none is lost."""

from __future__ import annotations

import base64
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

from ingest.tables import copy_all
from ingest.worker import Worker
from lake.blobs import Blobs
from lake.config import Config
from lake.events import CATALOGUE, TOPICS, TOPICS_BY_GROUP, Event, EventError
from lake.follow import Follower
from lake.log import Log, Record, open_log, partition_of
from lake.store import Store
from lake.tables import DEAD_LETTERS, SCHEMAS
from lake.wire import GAP, SCHEMA_VERSION, Headers, event_of
from tests.support.command import document, headrace
from tests.support.corrupted import MAKERS, Case, corrupted, good
from tests.support.events import ONE_OF_EACH
from tests.support.run_events import finished_group

SEED = 20_261_129
CASES = 10_000
NEIGHBOURS = 10  # a batch of good events after so many bad records

Place = tuple[str, int, int]


@pytest.fixture
def sqlite_log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(f"sqlite://{tmp_path}/log.db?partitions=2", Blobs(str(tmp_path / "blobs")))
    yield log
    log.close()


def written(log: Log, cases: Iterable[Case]) -> tuple[dict[Place, Case], dict[str, Event]]:
    """Write the cases with good events and gaps among them: the cases by place, the good events by id."""
    bad: dict[Place, Case] = {}
    neighbours: dict[str, Event] = {}
    for number, case in enumerate(cases):
        offset = log.append_raw(case.topic, case.key, case.headers, case.value)
        bad[case.topic, partition_of(case.key, log.partitions(case.topic)), offset] = case
        if number % NEIGHBOURS == 0:
            events = [good(e, 1_000_000 + number + i) for i, e in enumerate(ONE_OF_EACH)]
            log.append(events)
            log.append_raw(case.topic, case.key, Headers(GAP, SCHEMA_VERSION, ""), b"")
            neighbours |= {e.event_id: e for e in events}
    return bad, neighbours


def sound(case: Case) -> bool:
    """Whether a fuzzed record still is an event, by the words of the catalogue and not by its code."""
    fields: dict[str, Any] = msgspec.msgpack.decode(case.value)
    needed = [f.name for f in msgspec.structs.fields(CATALOGUE[case.headers.type]) if f.required]
    arrays = [np.frombuffer(fields.get(name, b""), "<i4") for name in ("context_ids", "output_ids")]
    logprobs = np.frombuffer(fields.get("output_logprobs") or b"", "<f4")
    return (
        set(needed) <= fields.keys()
        and isinstance(fields["time_us"], int)
        and all((a >= 0).all() for a in arrays)
        and bool(np.isfinite(logprobs).all() and (logprobs <= 1e-3).all())
        and (fields.get("output_logprobs") is None or len(logprobs) == len(arrays[1]))
    )


def split(bad: dict[Place, Case], log: Log) -> tuple[dict[Place, Case], dict[Place, Case]]:
    """The cases that are bad, and the fuzzed ones that by chance are events of the same id still."""
    lucky: dict[Place, Case] = {}
    for place, case in bad.items():
        if case.kind != "fuzzed":
            continue
        try:
            event = event_of(Record(*place, case.key, case.headers, case.value, 0), log.blobs)
        except EventError:
            continue
        assert event is not None
        assert event.event_id == case.headers.event_id
        assert sound(case), case
        lucky[place] = case
    return {place: case for place, case in bad.items() if place not in lucky}, lucky


def check_lake(
    store: Store, bad: dict[Place, Case], lucky: dict[Place, Case], events: dict[str, Event]
) -> None:
    """Every bad record is in `dead_letters` once, with bytes and reason; every good one in its table once."""
    dead = store.table("events/dead_letters", DEAD_LETTERS).read().to_pylist()
    found = {(d["topic"], d["log_partition"], d["log_offset"]): d for d in dead}
    assert len(dead) == len(found)
    assert found.keys() == bad.keys()
    for place, case in bad.items():
        row = found[place]
        assert (row["value"], row["key"], row["type"]) == (case.value, case.key, case.headers.type), case
        assert row["event_id"] == case.headers.event_id
        assert 10 < len(row["reason"]) <= 2000
    ids: Counter[str] = Counter()
    for topic in TOPICS:
        ids.update(
            store.table(f"events/{topic}", SCHEMAS[topic]).read(columns=["event_id"])["event_id"].to_pylist()
        )
    assert ids == Counter(events.keys()) + Counter(c.headers.event_id for c in lucky.values())


def test_the_cases_are_of_every_kind_and_every_type_and_the_same_for_a_seed() -> None:
    cases = list(corrupted(SEED, CASES))
    assert len({c.headers.event_id for c in cases if c.headers.event_id not in ("", "x")}) > 0.9 * CASES
    assert min(Counter(c.kind for c in cases).values()) == CASES // len(MAKERS)
    assert {c.headers.type for c in cases if c.kind == "truncated"} == set(CATALOGUE)
    assert {c.topic for c in cases} == set(TOPICS)
    assert cases[:500] == list(corrupted(SEED, 500))


@pytest.mark.slow
def test_10_000_corrupted_records_stop_nothing(tmp_path: Path) -> None:
    """The log lies in memory where there is a place for it: each raw record is an fsync of its own."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        log = open_log(f"sqlite://{folder}/log.db?partitions=2", Blobs(f"{folder}/blobs"))
        bad, neighbours = written(log, corrupted(SEED, CASES))
        store = Store(str(tmp_path / "lake"))
        copy_all(log, store, batch_bytes=1 << 20)
        bad, lucky = split(bad, log)
        assert len(bad) > 0.95 * CASES
        check_lake(store, bad, lucky, neighbours)
        copy_all(log, store)  # nothing is written again
        check_lake(store, bad, lucky, neighbours)
        log.close()


def test_a_worker_derives_the_groups_among_corrupted_records(sqlite_log: Log, tmp_path: Path) -> None:
    """The bad records lie in every topic, between the events of groups that become ready."""
    bad, neighbours = {}, {}
    for number in range(4):
        more, events = written(sqlite_log, corrupted(SEED + number, 2 * len(MAKERS)))
        bad |= more
        sqlite_log.append(finished_group(number))
        neighbours |= events | {e.event_id: e for e in finished_group(number)}
    store = Store(str(tmp_path / "lake"))
    worker = Worker(sqlite_log, store, Config(commit_every_s=0.02))
    until = time.monotonic() + 60
    while worker.step() and time.monotonic() < until:
        pass
    worker.close()
    ready = {f"g-{n:06d}:ready" for n in range(4)}
    assert ready <= set(store.table("events/groups", SCHEMAS["groups"]).read()["event_id"].to_pylist())
    bad, lucky = split(bad, sqlite_log)
    check_lake(store, bad, lucky, neighbours | dict.fromkeys(ready))  # type: ignore[arg-type]


def test_a_follower_goes_on_over_corrupted_records(sqlite_log: Log) -> None:
    bad, neighbours = written(sqlite_log, corrupted(SEED, 4 * len(MAKERS)))
    _, lucky = split(bad, sqlite_log)
    follower = Follower(sqlite_log, TOPICS)
    found = sorted(e.event_id for e in follower.catch_up())
    follower.close()
    assert found == sorted([*neighbours, *(c.headers.event_id for c in lucky.values())])


def test_text_in_the_file_that_is_none_is_a_bad_record(sqlite_log: Log, tmp_path: Path) -> None:
    """What another program wrote into the file, or a disk lost."""
    sqlite_log.append(ONE_OF_EACH)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute(
            "insert into cells_0 select max(offset) + 1, 1, cast(x'ff41' as text), cast(x'fe' as text), 2, "
            "cast(x'fdfc' as text), x'80' from cells_0"
        )
    connection.close()
    store = Store(str(tmp_path / "lake"))
    copy_all(sqlite_log, store)
    (dead,) = store.table("events/dead_letters", DEAD_LETTERS).read().to_pylist()
    assert (dead["key"], dead["type"], dead["event_id"]) == ("\ufffdA", "\ufffd", "\ufffd\ufffd")


def test_dead_letters_read_well(sqlite_log: Log, tmp_path: Path) -> None:
    """As a table values are short, and what a terminal would obey is escaped; as JSON they are whole."""
    cases = [c for c in corrupted(SEED, 8 * len(MAKERS)) if c.kind != "fuzzed"]
    for case in cases:
        sqlite_log.append_raw(case.topic, case.key, case.headers, case.value)
    evil = Headers("\x1b]0;owned\x07[/b]", 2, "x")
    sqlite_log.append_raw("cells", "", evil, b"\x1b[2J" * 1000)
    copy_all(sqlite_log, Store(str(tmp_path / "lake")))
    query = ("sql", "lake", "select type, value from dead_letters", "--limit", "1000")
    shown = headrace(*query, folder=tmp_path).stdout
    assert "\x1b" not in shown
    assert r"\x1b]0;owned\x07[/b]" in shown
    assert r"b'\x1b[2J\x1b[2J\x1b[2J\x1b[2J'... 4000 bytes" in shown
    rows = document("sql", "lake", "from dead_letters", folder=tmp_path)
    assert sorted(base64.b64decode(r["value"]) for r in rows) == sorted(
        [c.value for c in cases] + [b"\x1b[2J" * 1000]
    )


@pytest.mark.kafka
def test_corrupted_records_in_kafka_and_records_of_another_program(
    kafka_url: Any, kafka_broker: Any, tmp_path: Path
) -> None:
    """The same on Kafka, and what only there can be: no headers, no key, no value, keys that are no text."""
    url = kafka_url(partitions=2)
    log = open_log(url, Blobs(str(tmp_path / "blobs")))
    bad, neighbours = written(log, corrupted(SEED, 12 * len(MAKERS)))
    prefix = url.rpartition("/")[2].partition("?")[0]
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address, max_request_size=4 << 20)
    digits = [("type", b"cell.changed"), ("schema", b"9" * 5000), ("event_id", b"\xff\xfe")]
    foreign: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]] = [
        (None, b"", []),  # the broker refuses it where a topic is compacted
        (b"\xff\xfe", b"\x00\xff", []),
        (b"k", None, [("type", b"tool.called")]),
        (b"k", b"x" * 1_500_000, [("schema", b"2"), ("schema", b"-1")]),
        (b"\xc3\x28", b"{}", digits),
        (b"k", b"", [("appended_us", b"9" * 5000), ("appended_us", b"\xff")]),
        (b"k", b"", [("type", b"model.called"), ("schema", "\uff12".encode()), ("event_id", b"")]),
    ]
    values: dict[Place, tuple[bytes | None, bytes]] = {}
    for topic in TOPICS:
        for key, value, headers in foreign if topic in TOPICS_BY_GROUP else foreign[1:]:
            sent = producer.send(f"{prefix}.{topic}", value, key, headers, partition=0).get(30)
            values[topic, 0, sent.offset] = (key, value or b"")
    producer.close()
    store = Store(str(tmp_path / "lake"))
    copy_all(log, store)
    dead = store.table("events/dead_letters", DEAD_LETTERS).read().to_pylist()
    mine = {p: d for d in dead if (p := (d["topic"], d["log_partition"], d["log_offset"])) in values}
    assert mine.keys() == values.keys()
    for place, (key, value) in values.items():
        assert mine[place]["value"] == value
        assert mine[place]["key"] == (key or b"").decode(errors="replace")
    bad, lucky = split(bad, log)
    found = {p for d in dead if (p := (d["topic"], d["log_partition"], d["log_offset"])) not in values}
    assert found == bad.keys()
    ids = [i for t in TOPICS for i in store.table(f"events/{t}", SCHEMAS[t]).read()["event_id"].to_pylist()]
    assert sorted(ids) == sorted([*neighbours, *(c.headers.event_id for c in lucky.values())])
    log.close()
