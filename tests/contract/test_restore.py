"""Restoring into a log: every record at its old offset, once, with its old time; on both logs alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from lake.events import TOPICS
from lake.log import Log, Partition, Record, open_log
from lake.restoring import Misplaced
from lake.wire import GAP, SCHEMA_VERSION, Headers
from tests.support.events import ONE_OF_EACH, tool

MakeUrl = Callable[..., str]
WAIT_S = 30.0  # a bound, never a measure


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Log]]:
    """Makes new logs with three partitions."""
    logs: list[Log] = []

    def make() -> Log:
        if request.param == "kafka":
            url = request.getfixturevalue("kafka_url")(partitions=3)
        else:
            url = f"sqlite://{tmp_path}/log-{len(logs)}.db?partitions=3"
        logs.append(open_log(url))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


def everything(log: Log) -> dict[Partition, list[Record]]:
    ends = {(t, p): end for t in TOPICS for p, end in log.end_offsets(t).items()}
    found: dict[Partition, list[Record]] = {lane: [] for lane in ends}
    reader = log.reader(dict.fromkeys(ends, 0))
    while any(reader.positions()[lane] < end for lane, end in ends.items()):
        for record in reader.poll(WAIT_S):
            found[record.topic, record.partition].append(record)
    reader.close()
    return found


def flat(records: dict[Partition, list[Record]]) -> list[Record]:
    return [r for lane in records.values() for r in lane]


def filled(log: Log) -> list[Record]:
    """Records of every topic, and what no event is: foreign bytes, an empty value, odd headers."""
    log.append([*ONE_OF_EACH, *(tool(f"g-{n % 7}", n, b"x" * 3000) for n in range(150))])
    log.append_raw("calls", "g-1", Headers("model.called", 1, "x:0"), b"\xc1 no msgpack")
    log.append_raw("tools", "Gruppe \u00fc", Headers("no.such", 99, ""), b"")
    return flat(everything(log))


def gap(offset: int) -> Record:
    return Record("calls", 1, offset, "", Headers(GAP, SCHEMA_VERSION, f"gap:{offset}"), b"", 5_000_001)


def test_a_restored_log_holds_every_record_where_it_lay_and_as_it_was(make_log: Callable[[], Log]) -> None:
    old, new = make_log(), make_log()
    records = filled(old)
    assert new.restore(records) == len(records)
    assert everything(new) == everything(old)
    for topic in TOPICS:
        assert new.end_offsets(topic) == old.end_offsets(topic)
    place = new.append([tool("g-1", 1000)])[0]
    assert place[2] == old.end_offsets("tools")[place[1]]


def test_gaps_are_records_too_and_times_are_kept_to_the_microsecond(make_log: Callable[[], Log]) -> None:
    log = make_log()
    assert log.restore([gap(0), gap(1)]) == 2
    assert everything(log)["calls", 1] == [gap(0), gap(1)]


def test_a_restore_that_stopped_goes_on_and_doubles_nothing(make_log: Callable[[], Log]) -> None:
    old, new = make_log(), make_log()
    records = filled(old)
    new.restore(records[:60])
    assert new.restore(records) == len(records) - 60
    assert new.restore(records) == 0
    assert everything(new) == everything(old)


@pytest.mark.parametrize("change", [{"key": "g-2"}, {"value": b"y"}, {"appended_us": 7}])
def test_a_record_that_differs_from_what_lies_there_is_refused(
    make_log: Callable[[], Log], change: dict[str, object]
) -> None:
    log = make_log()
    log.restore([gap(0), gap(1), gap(2)])
    with pytest.raises(Misplaced, match="another record at 1 of calls/1"):
        log.restore([gap(0), msgspec.structs.replace(gap(1), **change), gap(2), gap(3)])
    assert everything(log)["calls", 1] == [gap(0), gap(1), gap(2)]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [((1,), "record 1 of calls/1 is given where 0"), ((0, 2), "2 of calls/1"), ((0, 0), "0 of calls/1")],
)
def test_an_offset_that_does_not_come_next_is_refused(
    make_log: Callable[[], Log], offsets: Sequence[int], message: str
) -> None:
    log = make_log()
    with pytest.raises(Misplaced, match=message):
        log.restore([gap(n) for n in offsets])
    assert everything(log)["calls", 1] == []


def test_a_partition_that_is_not_there_is_refused(make_log: Callable[[], Log]) -> None:
    log = make_log()
    with pytest.raises(ValueError, match="no partition 3 of calls"):
        log.restore([msgspec.structs.replace(gap(0), partition=3)])
    assert log.restore([]) == 0
