"""The proxy over a real Kafka that is away for a while, or for too long."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from ingest.proxy.writer import EventWriter
from lake.log_kafka import BYTES_IN_FLIGHT, KafkaLog
from tests.support import kafka
from tests.support.driven_execution import user
from tests.support.events import tool
from tests.support.running_proxy import LIMITS, read_events, running_proxy, until
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder

pytestmark = pytest.mark.kafka
BOUND_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
async def engine(model):
    async with ScriptedEngine(
        Tokenizer.from_file(str(model / "tokenizer.json")), lambda _: Say("yes")
    ) as engine:
        yield engine


@pytest.fixture
def make_log(kafka_url):
    logs = []

    def make(wait_s: float) -> KafkaLog:
        logs.append(KafkaLog(kafka_url(), wait_s=wait_s))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


async def appended(log: KafkaLog, attempts_s: float = BOUND_S):
    """Wait until the broker takes events again: its own session may be over."""
    await asyncio.to_thread(until_open, log, attempts_s)


def until_open(log: KafkaLog, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            log.end_offsets("calls")
            return
        except Exception:
            assert time.monotonic() < deadline


async def test_a_reply_is_held_while_the_broker_is_frozen_and_the_event_is_there_once(
    make_log, kafka_broker, model, engine
):
    log = make_log(30.0)
    async with running_proxy(log, model, engine.url) as proxy:
        assert (await proxy.answer([user("first")]))[0] == 200
        with kafka.frozen(kafka_broker):
            call = asyncio.create_task(proxy.answer([user("second")], execution="e-2"))
            await until(lambda: len(engine.asked) == 2)
            await asyncio.sleep(3.0)
            assert not call.done(), "nothing is delivered that is not in the log"
        status, body = await asyncio.wait_for(call, BOUND_S)
        assert (status, body["choices"][0]["message"]["content"]) == (200, "yes")
        events = await asyncio.to_thread(read_events, log, "calls")
        assert [e.execution_id for e in events] == ["e-1", "e-2"]
        assert all(e.delivered for e in events)


async def test_a_broker_that_stays_away_fails_the_call_by_name(make_log, kafka_broker, model, engine):
    log = make_log(2.0)
    limits = replace(LIMITS, log_wait_s_max=3.0)
    async with running_proxy(log, model, engine.url, limits) as proxy:
        assert (await proxy.answer([user("first")]))[0] == 200
        with kafka.frozen(kafka_broker):
            status, body = await asyncio.wait_for(proxy.answer([user("second")], execution="e-2"), BOUND_S)
            assert (status, body["error"]["code"]) == (503, "log_unavailable")
            assert (
                "could not be reached for 3 s; 1 events are not in it: log kafka://"
                in body["error"]["message"]
            )
            status, body = await proxy.close("e-2")
            assert (status, body["error"]["code"]) == (503, "log_unavailable"), (
                "it has a hole, whatever comes"
            )
        await appended(log)
        status, _ = await asyncio.wait_for(proxy.answer([user("third")], execution="e-3"), BOUND_S)
        assert status == 200, "others go on"
        found = {e.execution_id for e in await asyncio.to_thread(read_events, log, "calls")}
        assert found >= {"e-1", "e-3"}
    gc.collect()


async def test_many_replies_are_held_at_once(make_log, kafka_broker, model, engine):
    log = make_log(30.0)
    async with running_proxy(log, model, engine.url) as proxy:
        await proxy.answer([user("first")])
        with kafka.frozen(kafka_broker):
            calls = [asyncio.create_task(proxy.answer([user("u")], execution=f"e-x{k}")) for k in range(60)]
            await until(lambda: len(engine.asked) == 61, BOUND_S)
            await asyncio.sleep(0.5)
            assert not any(c.done() for c in calls)
        answers = await asyncio.wait_for(asyncio.gather(*calls), BOUND_S)
        assert {status for status, _ in answers} == {200}
        events = await asyncio.to_thread(read_events, log, "calls")
        assert len(events) == len({e.event_id for e in events}) == 61


async def test_what_waits_for_a_frozen_broker_is_bounded_in_bytes(make_log, kafka_broker):
    log = make_log(30.0)
    writer = EventWriter(log, pending_bytes_max=6 << 20, batch_bytes_max=4 << 20)
    await writer.append(tool("g", 0))
    sizes = []
    with kafka.frozen(kafka_broker):
        large = [asyncio.create_task(writer.append(tool("g", n, os.urandom(500_000)))) for n in range(1, 60)]
        for _ in range(10):
            await asyncio.sleep(0.1)
            sizes.append((writer._bytes, log._budget.bytes))
        assert not any(c.done() for c in large)
    await asyncio.wait_for(asyncio.gather(*large), BOUND_S)
    await writer.stop()
    assert 0 < max(waiting for waiting, _ in sizes) <= 6 << 20
    assert 0 < max(in_flight for _, in_flight in sizes) <= BYTES_IN_FLIGHT
    events = await asyncio.to_thread(read_events, log, "tools")
    assert [e.tool_call_id for e in events] == [str(n) for n in range(60)]
