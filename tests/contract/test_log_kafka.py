"""What only the Kafka log has to show: brokers that are away, a client that is bounded, foreign records."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lake import kafka_reader, log_kafka
from lake.events import EventError
from lake.log import LogError, LogUnavailable, Record, open_log
from lake.log_kafka import Budget, KafkaLog
from lake.wire import Headers, decode
from tests.support import kafka, many
from tests.support.events import cell, tool

pytestmark = pytest.mark.kafka
# kafka-python leaves sockets that were refused to the garbage collector
refused = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)
WAIT_S = 3.0
BOUND_S = 60.0  # far above every wait asked for: a hang, not a measure


@pytest.fixture
def log(kafka_url: Callable[..., str]) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url(), wait_s=WAIT_S)
    yield log
    log.close()


def read(log: KafkaLog, topic: str, count: int) -> list[Record]:
    reader = log.reader({(topic, 0): 0})
    records: list[Record] = []
    deadline = time.monotonic() + BOUND_S
    while len(records) < count and time.monotonic() < deadline:
        records += reader.poll(1.0)
    reader.close()
    return records


# ------------------------------------------------------------------------------ brokers away
def test_opening_where_no_broker_listens_says_where_and_how_long_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets it meanwhile
        port = taken.getsockname()[1]
        with pytest.raises(LogUnavailable) as error:
            KafkaLog(f"kafka://127.0.0.1:{port}/x", wait_s=1.0)
    assert f"log kafka://127.0.0.1:{port}/x: opening failed after" in str(error.value)
    assert "(at most 1 s)" in str(error.value)
    assert "then try again" in str(error.value)
    assert threading.active_count() == before


def test_an_append_to_a_frozen_broker_fails_and_the_next_one_works(
    log: KafkaLog, kafka_broker: kafka.Broker
) -> None:
    before = threading.active_count()
    log.append([cell("s", 0)])
    with (
        kafka.frozen(kafka_broker),
        pytest.raises(LogUnavailable, match="an append of 2 events failed after"),
    ):
        log.append([cell("s", 1), cell("s", 2)])
    deadline = time.monotonic() + BOUND_S
    while True:  # the broker has to find out first that its own session is over
        try:
            log.append([cell("s", 1), cell("s", 2)])
            break
        except LogUnavailable:
            assert time.monotonic() < deadline
    ids = list(dict.fromkeys(r.headers.event_id for r in read(log, "cells", 3)))
    assert ids == [f"cell:s:cell:heartbeat:{n}" for n in range(3)], "in order once repeats are removed"
    assert (log._budget.records, log._budget.bytes) == (0, 0)
    log.close()
    assert threading.active_count() == before, "nothing of the producer that failed is left"


def test_asking_and_reading_a_frozen_broker_fails_in_bounded_time_and_goes_on_afterwards(
    log: KafkaLog, kafka_broker: kafka.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "PROBE_EVERY_S", 0.5)
    log.append([cell("s", 0)])
    assert log.end_offsets("cells") == {0: 1}
    reader = log.reader({("cells", 0): 0})
    assert len(reader.poll(BOUND_S)) == 1
    with kafka.frozen(kafka_broker):
        with pytest.raises(LogUnavailable, match="asking for offsets failed after"):
            log.end_offsets("cells")
        with pytest.raises(LogUnavailable, match="for 3 s, no broker answers"):
            reader.poll(BOUND_S)
    deadline = time.monotonic() + BOUND_S
    while log.append([cell("s", 1)]) and not (records := reader.poll(1.0)):
        assert time.monotonic() < deadline
    assert records[0].offset == 1
    reader.close()


def test_a_reader_that_gets_nothing_though_there_is_something_says_so(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python had consumers that stalled; here one is paused behind the reader's back."""
    monkeypatch.setattr(kafka_reader, "PROBE_EVERY_S", 0.5)
    reader = log.reader({("cells", 0): 0})
    reader._consumer.pause(*reader._consumer.assignment())
    log.append([cell("s", 0)])
    with pytest.raises(LogUnavailable, match="1 partitions hold records that do not arrive"):
        reader.poll(BOUND_S)
    assert reader.positions() == {("cells", 0): 0}
    reader.close()


# ------------------------------------------------------------------------------ bounds
def test_a_budget_holds_back_records_and_bytes_until_there_is_room() -> None:
    budget = Budget(records_max=2, bytes_max=100)
    assert budget.take(60, 0.0)
    assert not budget.take(50, 0.0), "bytes"
    assert budget.take(40, 0.0)
    assert not budget.take(0, 0.0), "records"
    waiting = threading.Thread(target=budget.take, args=(80, BOUND_S))
    waiting.start()
    budget.give(40)
    budget.give(60)
    waiting.join()
    assert (budget.records, budget.bytes) == (1, 80)
    budget.give(80)
    assert budget.take(1_000, 0.0), "a record larger than all of the room goes alone"
    assert not budget.take(1, 0.0)


def test_many_more_events_than_may_be_in_flight_pass(log: KafkaLog) -> None:
    log._budget = Budget(records_max=16, bytes_max=20_000)
    log.append([tool("g", n, b"x" * 1_000) for n in range(400)])
    assert [r.headers.event_id for r in read(log, "tools", 400)] == [f"e:tool:{n}" for n in range(400)]


def test_a_frozen_broker_fills_the_budget_and_no_more(log: KafkaLog, kafka_broker: kafka.Broker) -> None:
    """send() of kafka-python would take all 1,000 records and 100 MB."""
    log.append([tool("g", 0)])
    log._budget = budget = Budget(records_max=50, bytes_max=1_000_000)
    with (
        kafka.frozen(kafka_broker),
        pytest.raises(LogUnavailable, match=r"9 records, 9\d+ bytes are in flight"),
    ):
        log.append([tool("g", n, b"x" * 100_000) for n in range(1_000)])
    assert budget.bytes <= 1_000_000


# ------------------------------------------------------------------------------ records and URLs
def test_a_record_of_another_program_is_handed_over_and_refused_by_decode(log: KafkaLog) -> None:
    producer = log._connected()
    topic = log._cluster.topic("tools")
    producer.send(topic, None, b"\xff", [("type", b"\xff"), ("schema", b"one")], partition=0)
    producer.send(topic, b"plain", None, [], partition=0).get(timeout=BOUND_S)
    first, second = read(log, "tools", 2)
    assert (first.key, first.headers, first.value) == ("\ufffd", Headers("\ufffd", 0, ""), b"")
    assert (second.key, second.headers, second.value) == ("", Headers("", 0, ""), b"plain")
    for record in (first, second):
        with pytest.raises(EventError, match="unknown event type"):
            decode(record.headers, record.value)


def test_a_record_over_the_limit_of_the_topic_is_a_final_error(log: KafkaLog) -> None:
    with pytest.raises(LogError, match=r"a record of 31\d+ bytes; a topic takes 2097152") as error:
        log.append_raw("cells", "", Headers("x", 1, "x"), os.urandom(3 << 20))
    assert not isinstance(error.value, LogUnavailable), "trying again would not help"
    assert log.append([cell("s", 0)]) == [("cells", 0, 0)]


def test_more_replicas_than_brokers_is_a_final_error(kafka_url: Callable[..., str]) -> None:
    with pytest.raises(LogError, match="replication") as error:
        KafkaLog(kafka_url() + "&replication=7")
    assert not isinstance(error.value, LogUnavailable)


def test_a_closed_log_says_so(kafka_url: Callable[..., str]) -> None:
    log = KafkaLog(kafka_url())
    log.close()
    with pytest.raises(LogError, match="closed; open it again"):
        log.append([cell("s", 0)])
    with pytest.raises(LogError, match="closed; open it again"):
        log.end_offsets("cells")


@pytest.mark.parametrize(
    "url",
    [
        "kafka://127.0.0.1/x",
        "kafka://127.0.0.1:9092",
        "kafka://127.0.0.1:9092/a/b",
        "kafka://:1/x",
        "kafka:///x",
    ],
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"write kafka://host:port\[,host:port\]/PREFIX"):
        KafkaLog(url)


# ------------------------------------------------------------------------------ three brokers
EVENTS, BATCH = 100_000, 2_000


@pytest.mark.slow
@refused
def test_of_three_brokers_one_is_killed_among_100_000_events_and_none_is_lost_or_twice(
    tmp_path: Path,
) -> None:
    with kafka.running(tmp_path, brokers=3) as cluster:
        url = f"kafka://{cluster.address}/lost?partitions=3&replication=3"
        process = many.start(url, EVENTS, BATCH)
        assert process.stdout is not None
        for _ in range(EVENTS // BATCH // 2):
            assert process.stdout.readline()
        cluster.control("kill", "2")
        rest, _ = process.communicate(timeout=4 * log_kafka.WAIT_S)
        assert process.returncode == 0
        assert rest.split()[-1] == str(EVENTS), "every append was acknowledged"
        log = open_log(url)
        reader = log.reader({("executions", p): 0 for p in range(3)})
        ids: list[str] = []
        deadline = time.monotonic() + BOUND_S
        ends = {("executions", p): end for p, end in log.end_offsets("executions").items()}
        while reader.positions() != ends:
            ids += [r.headers.event_id for r in reader.poll(1.0, records_max=10_000)]
            assert time.monotonic() < deadline
        reader.close()
        log.close()
        assert len(ids) == EVENTS, "each once"
        assert set(ids) == {f"e-{n}:launched" for n in range(EVENTS)}
        for _ in range(6):  # whichever broker is asked first
            log = open_log(url)
            assert sum(log.end_offsets("executions").values()) == EVENTS
            log.close()
    gc.collect()  # the sockets, while their warnings are ignored
