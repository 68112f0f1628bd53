"""What every log guarantees: one suite over the embedded log and a real Kafka."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lake.events import TOPICS_BY_GROUP, TOPICS_SINGLE, EventError
from lake.log import Log, LogCorrupt, Partition, Reader, Record, now_us, open_log, partition_of
from lake.wire import Headers, decode, encode
from tests.support import appender
from tests.support.events import ONE_OF_EACH, cell, tool

MakeUrl = Callable[..., str]
PATIENCE_S = 60.0  # a bound, never a measure: a broker on a busy machine may take a while


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    """Makes the URL of a new log with so many partitions."""
    if request.param == "kafka":
        return request.getfixturevalue("kafka_url")
    numbers = iter(range(100))
    return lambda partitions=1: f"sqlite://{tmp_path}/log-{next(numbers)}.db?partitions={partitions}"


@pytest.fixture
def opened() -> Iterator[Callable[[str], Log]]:
    """Opens logs and closes them at the end."""
    logs: list[Log] = []

    def open_one(url: str) -> Log:
        logs.append(open_log(url))
        return logs[-1]

    yield open_one
    for log in logs:
        log.close()


@pytest.fixture
def log(make_url: MakeUrl, opened: Callable[[str], Log]) -> Log:
    """A new log with three partitions."""
    return opened(make_url(partitions=3))


def lanes_of(log: Log, *topics: str) -> dict[Partition, int]:
    return {(topic, p): 0 for topic in topics for p in range(log.partitions(topic))}


def read(reader: Reader, count: int, **limits: int) -> list[Record]:
    """Exactly `count` records, and none after them."""
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count and time.monotonic() < deadline:
        records += reader.poll(1.0, **limits)
    records += reader.poll(0.05)
    assert len(records) == count
    return records


def read_all(log: Log, start: Mapping[Partition, int], count: int) -> list[Record]:
    reader = log.reader(start)
    try:
        return read(reader, count)
    finally:
        reader.close()


# ------------------------------------------------------------------------------ what is written
def test_every_event_comes_back_as_it_was_where_append_said(log: Log) -> None:
    before = now_us()
    places = log.append(ONE_OF_EACH)
    after = now_us()
    records = read_all(log, lanes_of(log, *TOPICS_BY_GROUP, *TOPICS_SINGLE), len(ONE_OF_EACH))
    by_place = {(r.topic, r.partition, r.offset): r for r in records}
    for event, place in zip(ONE_OF_EACH, places, strict=True):
        record = by_place[place]
        assert (record.headers, record.value) == encode(event)
        assert record.key == event.key
        assert decode(record.headers, record.value) == event
        assert before - 2_000 <= record.appended_us <= after + 2_000  # Kafka's clock counts milliseconds


def test_offsets_are_dense_and_records_lie_in_the_order_of_appends(log: Log) -> None:
    events = [tool(f"g-{n % 7}", n) for n in range(100)]
    places = log.append(events[:60]) + [place for event in events[60:] for place in log.append([event])]
    records = read_all(log, lanes_of(log, "tools"), 100)
    for p in range(3):
        lane = [r for r in records if r.partition == p]
        assert [r.offset for r in lane] == list(range(len(lane)))
        assert [r.headers.event_id for r in lane] == [
            e.event_id for e, place in zip(events, places, strict=True) if place[1] == p
        ]
        assert lane, "seven groups fall into all three partitions"


def test_a_key_lies_in_the_partition_that_partition_of_names(log: Log) -> None:
    places = log.append([tool(f"g-{n}", n) for n in range(30)])
    assert [place[1] for place in places] == [partition_of(f"g-{n}", 3) for n in range(30)]


def test_partition_of_is_pinned() -> None:
    """A change would tear groups apart that lie in a log already.  The first three are published FNV-1a."""
    published = {"": 0xCBF29CE484222325, "a": 0xAF63DC4C8601EC8C, "foobar": 0x85944171F73967E8}
    assert [partition_of(key, 64) for key in published] == [value % 64 for value in published.values()]
    assert [partition_of(key, 64) for key in ("g-0", "g-1", "Gruppe ü", "組")] == [51, 0, 9, 23]


def test_the_topics_of_groups_are_partitioned_alike_and_the_others_are_single(log: Log) -> None:
    assert {topic: log.partitions(topic) for topic in TOPICS_BY_GROUP + TOPICS_SINGLE} == (
        dict.fromkeys(TOPICS_BY_GROUP, 3) | dict.fromkeys(TOPICS_SINGLE, 1)
    )


def test_a_bad_event_anywhere_in_a_batch_leaves_nothing_written(log: Log) -> None:
    too_large = tool("g", 2, b"x" * (1 << 20))
    with pytest.raises(EventError, match="a record holds 1048576"):
        log.append([tool("g", 1), cell("s", 1), too_large])
    assert log.end_offsets("tools") == {0: 0, 1: 0, 2: 0}
    assert log.end_offsets("cells") == {0: 0}


def test_appending_nothing_is_nothing(log: Log) -> None:
    assert log.append([]) == []


def test_a_raw_record_is_written_unchecked(log: Log) -> None:
    headers = Headers("no.such", 99, "id ü")
    offset = log.append_raw("groups", "g-1", headers, b"\xc1 not msgpack")
    assert offset == 0
    (record,) = read_all(log, lanes_of(log, "groups"), 1)
    assert (record.key, record.headers, record.value) == ("g-1", headers, b"\xc1 not msgpack")
    assert record.partition == partition_of("g-1", 3)


@pytest.mark.parametrize(
    "key",
    ["Gruppe ü", "組-1", "a\x00b", "🌊" * 100, "'; drop table tools_0; --", ""],
    ids=["umlaut", "ideograph", "nul", "long", "quote", "empty"],
)
def test_any_key_comes_back(log: Log, key: str) -> None:
    log.append([tool(key, 1, execution=key)])
    (record,) = read_all(log, lanes_of(log, "tools"), 1)
    assert record.key == key
    assert record.headers.event_id == f"{key}:tool:1"
    assert decode(record.headers, record.value).key == key


# ------------------------------------------------------------------------------ reading
def test_a_reader_replays_from_any_offset(log: Log) -> None:
    log.append([tool("g", n) for n in range(20)])
    lane = ("tools", partition_of("g", 3))
    for start in (0, 1, 7, 19, 20):
        records = read_all(log, {lane: start}, 20 - start)
        assert [r.offset for r in records] == list(range(start, 20))


def test_a_reader_seeks_back_and_forth(log: Log) -> None:
    log.append([tool("g", n) for n in range(10)])
    lane = ("tools", partition_of("g", 3))
    reader = log.reader({lane: 0})
    assert [r.offset for r in read(reader, 10)] == list(range(10))
    reader.seek({lane: 4})
    assert reader.positions() == {lane: 4}
    assert [r.offset for r in read(reader, 6)] == list(range(4, 10))
    reader.seek({lane: 9})
    assert [r.offset for r in reader.poll(PATIENCE_S)] == [9]
    reader.close()


def test_a_seek_forgets_what_was_fetched_before_it(log: Log) -> None:
    log.append([tool("g", n) for n in range(10)])
    lane = ("tools", partition_of("g", 3))
    reader = log.reader({lane: 0})
    assert [r.offset for r in reader.poll(PATIENCE_S, records_max=1)] == [0]
    reader.seek({lane: 7})
    assert [r.offset for r in read(reader, 3)] == [7, 8, 9]
    reader.close()


def test_positions_and_lag_count_what_was_returned(log: Log) -> None:
    log.append([tool("g", n) for n in range(10)])
    lane, other = ("tools", partition_of("g", 3)), ("cells", 0)
    reader = log.reader({lane: 2, other: 0})
    assert reader.lag() == {lane: 8, other: 0}
    assert len(reader.poll(PATIENCE_S, records_max=3)) == 3
    assert reader.positions() == {lane: 5, other: 0}
    assert reader.lag() == {lane: 5, other: 0}
    log.append([tool("g", 10), cell("s", 1)])
    assert reader.lag() == {lane: 6, other: 1}
    read(reader, 7)
    assert reader.lag() == {lane: 0, other: 0}
    assert log.end_offsets("tools")[lane[1]] == 11
    reader.close()


def test_records_of_900_kb_pass_and_bytes_max_bounds_a_poll(log: Log) -> None:
    events = [tool(f"g-{n % 3}", n, bytes([n]) * 900_000) for n in range(9)]
    log.append(events)
    reader = log.reader(lanes_of(log, "tools"))
    seen: list[Record] = []
    while len(seen) < 9:
        records = reader.poll(PATIENCE_S, bytes_max=2_000_000)
        assert len(records) >= 1
        assert sum(len(r.value) for r in records) <= 2_000_000 + 3 * 900_100
        seen += records
    assert sorted(r.value for r in seen) == sorted(encode(e)[1] for e in events)
    reader.close()


def test_no_partition_starves_the_others(log: Log) -> None:
    """Within as many polls as there are partitions each of them is served."""
    log.append([tool(f"g-{n % 7}", n) for n in range(300)])
    log.append([cell("s", n) for n in range(5)])
    reader = log.reader(lanes_of(log, "tools", "cells"))
    read_so_far = Counter(r.topic for r in read(reader, 305, records_max=40))
    assert read_so_far == {"tools": 300, "cells": 5}
    reader.close()


def test_an_empty_log_is_read_as_empty(log: Log) -> None:
    everything = lanes_of(log, *TOPICS_BY_GROUP, *TOPICS_SINGLE)
    reader = log.reader(everything)
    assert reader.poll(0.0) == []
    assert reader.poll(0.05) == []
    assert reader.positions() == everything
    assert set(reader.lag().values()) == {0}
    assert log.end_offsets("groups") == {0: 0, 1: 0, 2: 0}
    reader.close()
    nothing = log.reader({})
    assert nothing.poll(0.01) == []
    assert nothing.lag() == {}
    nothing.close()


def test_a_position_past_the_end_is_refused_and_leaves_a_reader_where_it_was(log: Log) -> None:
    log.append([tool("g", 0)])
    lane = ("tools", partition_of("g", 3))
    with pytest.raises(LogCorrupt, match=r"asked for offset 2 of tools/\d, which holds 0 to 1"):
        log.reader({lane: 2})
    reader = log.reader({lane: 0})
    for offset in (-1, 7):
        with pytest.raises(LogCorrupt, match=f"asked for offset {offset}"):
            reader.seek({lane: offset})
    assert reader.positions() == {lane: 0}
    assert len(read(reader, 1)) == 1
    with pytest.raises(ValueError, match="this reader reads"):
        reader.seek({("cells", 0): 0})
    reader.close()


@pytest.mark.parametrize(
    ("lane", "sentence"),
    [
        (("tools", 3), "no partition 3 of tools; it has 3"),
        (("cells", 1), "it has 1"),
        (("x", 0), "no topic 'x'"),
    ],
    ids=["partition", "single", "topic"],
)
def test_what_the_log_does_not_have_is_refused(log: Log, lane: Partition, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        log.reader({lane: 0})


def test_a_topic_that_no_log_has_is_refused(log: Log) -> None:
    for call in (log.partitions, log.end_offsets, lambda t: log.append_raw(t, "", Headers("", 1, ""), b"")):
        with pytest.raises(ValueError, match="no topic 'x'; the log has calls,"):
            call("x")


# ------------------------------------------------------------------------------ opening
def test_a_log_opened_again_holds_what_it_held(make_url: MakeUrl, opened: Callable[[str], Log]) -> None:
    url = make_url(partitions=3)
    first = open_log(url)
    first.append([tool("g", n) for n in range(5)])
    first.close()
    first.close()
    for again in (url, url.partition("?")[0]):  # the number of partitions is found where it is not said
        log = opened(again)
        assert log.partitions("tools") == 3
        assert [r.headers.event_id for r in read_all(log, lanes_of(log, "tools"), 5)] == [
            f"e:tool:{n}" for n in range(5)
        ]
    assert log.append([tool("g", 5)])[0][2] == 5


def test_another_number_of_partitions_is_refused(make_url: MakeUrl, opened: Callable[[str], Log]) -> None:
    url = make_url(partitions=3)
    opened(url)
    with pytest.raises(ValueError, match="has 3 partitions, asked for 2; their number is fixed"):
        open_log(url.replace("partitions=3", "partitions=2"))


def test_many_may_open_a_new_log_at_once(make_url: MakeUrl, opened: Callable[[str], Log]) -> None:
    url = make_url(partitions=2)
    with ThreadPoolExecutor(6) as pool:
        logs = list(pool.map(opened, [url] * 6))
    for n, log in enumerate(logs):
        log.append([cell("s", n)])
    assert {log.end_offsets("cells")[0] for log in logs} == {6}


# ------------------------------------------------------------------------------ several at once
def test_threads_append_through_one_log(log: Log) -> None:
    def work(name: int) -> list[tuple[str, int, int]]:
        return [
            place for n in range(25) for place in log.append([tool(f"g-{name}", n, execution=f"e-{name}")])
        ]

    with ThreadPoolExecutor(8) as pool:
        places = [place for some in pool.map(work, range(8)) for place in some]
    assert len(set(places)) == 200
    records = read_all(log, lanes_of(log, "tools"), 200)
    for name in range(8):
        assert [r.headers.event_id for r in records if r.key == f"g-{name}"] == [
            f"e-{name}:tool:{n}" for n in range(25)
        ]


def test_processes_append_at_once_and_nothing_is_lost_or_doubled(
    make_url: MakeUrl, opened: Callable[[str], Log]
) -> None:
    url = make_url(partitions=3)
    log = opened(url)
    names, batches = ("a", "b", "c"), 60
    processes = [appender.start(url, name, batches) for name in names]
    for process in processes:
        appender.begin(process)
    for process in processes:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    records = read_all(log, lanes_of(log, "tools", "cells"), 3 * batches * len(names))
    ids = [r.headers.event_id for r in records]
    assert len(set(ids)) == len(ids)
    for name in names:
        for key in {r.key for r in records if r.topic == "tools" and r.key.startswith(name)}:
            numbers = [decode(r.headers, r.value).time_us for r in records if r.key == key]
            assert numbers == sorted(numbers)
    for p in range(3):
        offsets = [r.offset for r in records if (r.topic, r.partition) == ("tools", p)]
        assert offsets == list(range(log.end_offsets("tools")[p]))


def test_a_waiting_reader_is_woken_by_an_append_of_another_process(
    make_url: MakeUrl, opened: Callable[[str], Log]
) -> None:
    url = make_url(partitions=1)
    log = opened(url)
    process = appender.start(url, "a", 1)
    reader = log.reader({("cells", 0): 0})
    assert reader.poll(0.3) == []
    timer = threading.Timer(0.5, appender.begin, [process])
    timer.start()
    records = reader.poll(PATIENCE_S)  # one poll: it must not sleep its whole wait away
    assert [r.headers.event_id for r in records] == ["cell:a:cell:heartbeat:0"]
    timer.join()
    process.communicate(timeout=PATIENCE_S)
    reader.close()
