"""Events larger than a record, on both logs: appended, read and ingested as if there were no bound."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from ingest.tables import EventTables, copy_all
from lake.blobs import Blobs
from lake.events import (
    Event,
    EventError,
    ModelCalled,
    StepPlanned,
    ids_to_bytes,
    logprobs_to_bytes,
)
from lake.follow import Follower
from lake.log import Log, LogUnavailable, Record, open_log
from lake.store import Store
from lake.tables import DEAD_LETTERS, SCHEMAS
from lake.wire import (
    EVENT_BYTES_MAX,
    RECORD_BYTES_MAX,
    SCHEMA_VERSION,
    NoBlobs,
    decode,
    encode,
    event_of,
    size_of,
)
from tests.support.events import ONE_OF_EACH, cell, tool

MIB = 1 << 20
BY_TYPE = {type(event): event for event in ONE_OF_EACH}
RNG = np.random.default_rng(4)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(str(tmp_path / "blobs"))


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        return request.getfixturevalue("kafka_url")(partitions=2)
    return f"sqlite://{tmp_path}/log.db?partitions=2"


@pytest.fixture
def log(url: str, blobs: Blobs) -> Iterator[Log]:
    log = open_log(url, blobs)
    yield log
    log.close()


def large_call(number: int, context: int, output: int = 4, difference: str = "") -> ModelCalled:
    """A call with so many tokens."""
    event = msgspec.structs.replace(
        BY_TYPE[ModelCalled],
        call_id=number,
        context_ids=ids_to_bytes(RNG.integers(0, 150_000, context)),
        output_ids=ids_to_bytes(RNG.integers(0, 150_000, output)),
        output_logprobs=logprobs_to_bytes(-RNG.random(output)),
        difference=difference,
        spans=(),
    )
    assert isinstance(event, ModelCalled)
    return event


CASES: dict[str, Callable[[], Event]] = {
    "5 MB of context": lambda: large_call(2, 5 * MIB // 4),
    "3 MB of a tool's result": lambda: tool("g", 3, RNG.bytes(3 * MIB)),
    "several large fields": lambda: large_call(4, MIB // 2, MIB // 2, "é" * MIB),
    "text": lambda: msgspec.structs.replace(ONE_OF_EACH[0], task="組🌊é" * 200_000),
    "a byte too much": lambda: tool("g", 5, b"x" * (RECORD_BYTES_MAX - len(encode(tool("g", 5))[1]))),
}


def read_all(log: Log, topic: str) -> list[Record]:
    reader = log.reader({(topic, p): 0 for p in range(log.partitions(topic))})
    found: list[Record] = []
    while len(found) < sum(log.end_offsets(topic).values()):
        found += reader.poll(1.0)
    reader.close()
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_large_event_comes_back(log: Log, name: str, tmp_path: Path) -> None:
    event = CASES[name]()
    log.append([event])
    (record,) = read_all(log, event.TOPIC)
    assert len(record.value) <= RECORD_BYTES_MAX < size_of(record)
    assert event_of(record, log.blobs) == event
    tables = copy_all(log, Store(str(tmp_path / "lake")))
    (row,) = tables.table(event.TOPIC).read().to_pylist()
    assert row["event_id"] == event.event_id
    for field, shape in (("result", bytes), ("task", str), ("difference", str)):
        if field in row and row[field] is not None:
            assert row[field] == getattr(event, field)
            assert isinstance(row[field], shape)
    if isinstance(event, ModelCalled):
        assert np.asarray(row["context_ids"], "<i4").tobytes() == event.context_ids
        assert np.asarray(row["output_logprobs"], "<f4").tobytes() == event.output_logprobs


def test_what_fits_is_written_as_if_there_were_no_blobs(log: Log, blobs: Blobs) -> None:
    log.append(ONE_OF_EACH)
    assert [encode(e, blobs) for e in ONE_OF_EACH] == [encode(e) for e in ONE_OF_EACH]
    assert [p for p in Path(blobs.root).rglob("*") if p.is_file()] == []


def test_the_largest_fields_are_moved_and_no_more_than_must_be(blobs: Blobs) -> None:
    event = large_call(4, 3 * MIB // 16, 10, "d" * (MIB // 3))  # 0.75 MiB of ids, a third of text
    fields = msgspec.msgpack.decode(encode(event, blobs)[1])
    assert set(fields["claims"]) == {"context_ids"}
    assert fields["claims"]["context_ids"][1] == 3 * MIB // 4
    assert (fields["context_ids"], fields["difference"]) == (b"", "d" * (MIB // 3))


def test_identical_content_is_kept_once(log: Log, blobs: Blobs) -> None:
    result = RNG.bytes(2 * MIB)
    log.append([tool("g", n, result) for n in range(3)])
    log.append([tool("g", n, result) for n in range(3)])
    assert [p.stat().st_size for p in Path(blobs.root).rglob("*") if p.is_file()] == [2 * MIB]


def test_a_bad_event_beside_a_large_one_leaves_no_record(log: Log) -> None:
    with pytest.raises(EventError, match="status is 'done'"):
        log.append([tool("g", 1, bytes(2 * MIB)), msgspec.structs.replace(ONE_OF_EACH[5], status="done")])
    assert sum(log.end_offsets("tools").values()) == 0


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (tool("g", 1, bytes(EVENT_BYTES_MAX)), f"an event holds {EVENT_BYTES_MAX} with all that it claims"),
        (msgspec.structs.replace(BY_TYPE[StepPlanned], groups=("g" * 50,) * 30_000), "in many small ones"),
        (tool("g" * 20_000, 1), "an id or a key of 20000 characters; at most 16384"),
        (large_call(2, 2 * MIB, 4, "\ud800"), "surrogates not allowed"),
    ],
    ids=["256 MiB", "no large field", "key", "surrogate"],
)
def test_what_no_log_takes_is_refused_by_name(event: Event, sentence: str, blobs: Blobs) -> None:
    with pytest.raises(EventError, match=sentence):
        encode(event, blobs)


def test_without_blobs_a_large_event_is_refused_and_a_claim_stops_its_reader(log: Log, url: str) -> None:
    """No dead letter: the bytes are there, only this reader was not told where."""
    log.append([tool("g", 1, bytes(2 * MIB))])
    without = open_log(url.partition("?")[0])
    with pytest.raises(EventError, match=r"a record holds 1048576; open the log with blobs"):
        without.append([tool("g", 2, bytes(2 * MIB))])
    (record,) = read_all(without, "tools")
    with pytest.raises(NoBlobs, match="e:tool:1: result lie outside the log; open it with its blobs"):
        event_of(record, without.blobs)
    without.close()


# ------------------------------------------------------------------------------ when bytes are gone
def ingested(log: Log, root: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Ids of the tools in the lake, and its dead letters, after everything was ingested."""
    store = Store(str(root / "lake"))
    copy_all(log, store)
    tools = store.table("events/tools", SCHEMAS["tools"]).read()
    return sorted(tools["event_id"].to_pylist()), store.table(
        "events/dead_letters", DEAD_LETTERS
    ).read().to_pylist()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda file: file.unlink(), r"e:tool:1: result: blob .* of 2097152 bytes is not in .*blobs"),
        (lambda file: file.write_bytes(bytes(2 * MIB)), r"e:tool:1: result: blob .* is damaged"),
        (lambda file: file.write_bytes(b"short"), r"is damaged: 5 bytes of 2097152"),
    ],
    ids=["missing", "other bytes", "torn"],
)
def test_bytes_that_are_gone_make_a_dead_letter_and_stop_nothing(
    log: Log, blobs: Blobs, tmp_path: Path, harm: Callable[[Path], Any], reason: str
) -> None:
    log.append([tool("g", n, RNG.bytes(2 * MIB)) for n in range(3)])
    record = next(r for r in read_all(log, "tools") if r.headers.event_id == "e:tool:1")
    claim = msgspec.msgpack.decode(record.value)["claims"]["result"][0]
    harm(Path(blobs.root) / claim[:2] / claim)
    tools, (dead,) = ingested(log, tmp_path)
    assert tools == ["e:tool:0", "e:tool:2"]
    assert (dead["value"], dead["log_offset"]) == (record.value, record.offset)
    assert dead["schema"] == SCHEMA_VERSION
    with pytest.raises(EventError, match=reason):
        event_of(record, blobs)
    assert claim in dead["reason"]


def test_a_store_that_does_not_answer_is_waited_for_and_makes_no_dead_letter(
    log: Log, blobs: Blobs, tmp_path: Path
) -> None:
    events = [tool("g", 0), tool("g", 1, RNG.bytes(2 * MIB)), tool("g", 2), cell("s", 1)]
    log.append(events)
    records = read_all(log, "tools") + read_all(log, "cells")
    store = Store(str(tmp_path / "lake"))
    tables = EventTables(log, store)
    away = shutil.move(blobs.root, tmp_path / "away")
    for _ in range(2):
        with pytest.raises(LogUnavailable, match=r"blobs .*is not there"):
            tables.commit(records)
    with pytest.raises(LogUnavailable):
        log.append([tool("g", 3, RNG.bytes(2 * MIB))])
    follower = Follower(log, ["tools"])
    with pytest.raises(LogUnavailable):
        list(follower.catch_up())
    shutil.move(away, blobs.root)
    new = tables.commit(records)
    assert sorted(new["tools"]["event_id"].to_pylist()) == ["e:tool:0", "e:tool:1", "e:tool:2"]
    assert store.table("events/dead_letters", DEAD_LETTERS).read().num_rows == 0
    assert [e.event_id for e in follower.catch_up()] == ["e:tool:0", "e:tool:1", "e:tool:2"]
    follower.close()


def test_claims_of_one_batch_are_of_one_table(log: Log, tmp_path: Path) -> None:
    """Large and small rows beside each other keep their order and their content."""
    events = [tool("g", n, bytes([n]) * (2 * MIB if n % 3 == 0 else 10)) for n in range(7)]
    log.append(events)
    store = Store(str(tmp_path / "lake"))
    copy_all(log, store)
    rows: pa.Table = store.table("events/tools", SCHEMAS["tools"]).read()
    found = dict(zip(rows["event_id"].to_pylist(), rows["result"].to_pylist(), strict=True))
    assert found == {e.event_id: e.result for e in events}


def test_decode_says_what_is_wrong_with_a_claim(blobs: Blobs) -> None:
    headers, value = encode(tool("g", 1, bytes(2 * MIB)), blobs)
    fields = msgspec.msgpack.decode(value)
    sha256, size = fields["claims"]["result"]
    for claims, sentence in (
        ({"result": ["../../etc/passwd", size]}, "a claim that cannot be: 'result', sha256 '../../etc"),
        ({"result": [sha256.upper(), size]}, "a claim that cannot be"),
        ({"result": [sha256, 0]}, "a claim that cannot be"),
        ({"result": [sha256, -size]}, "a claim that cannot be"),
        ({"time_us": [sha256, size]}, "fields of text and bytes are group_id"),
        ({"nobody": [sha256, size]}, "a claim that cannot be: 'nobody'"),
        ({"result": [sha256, EVENT_BYTES_MAX]}, "an event holds"),
        ({"name": [sha256, size], "result": [sha256, size]}, "name stands in the record and is claimed too"),
        ({"result": [sha256]}, "does not decode"),
        ({"result": [sha256, 2**63]}, "does not decode"),
        ([1], "does not decode"),
    ):
        bad = msgspec.msgpack.encode(fields | {"claims": claims})
        with pytest.raises(EventError, match=sentence):
            decode(headers, bad, blobs)
    with pytest.raises(EventError, match="unknown field `claims`"):  # schema 1 has none
        decode(msgspec.structs.replace(headers, schema=1), value, blobs)


def test_large_bytes_are_not_copied_on_their_way(log: Log) -> None:
    """Out: hashed and written where they lie.  In: read once."""
    size, room = 64 * MIB, 4 * MIB
    event = tool("g", 1, bytes(size))
    tracemalloc.start()
    try:
        log.append([event])
        assert tracemalloc.get_traced_memory()[1] < room
        (record,) = read_all(log, "tools")
        tracemalloc.reset_peak()
        found = event_of(record, log.blobs)
        assert tracemalloc.get_traced_memory()[1] < size + room
    finally:
        tracemalloc.stop()
    assert found == event
