"""Events to the log: together, in order, and what fails is told to whoever waits for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ingest.proxy.writer import EventWriter
from lake.events import EventError, ExecutionFinished, ExecutionLaunched
from lake.log import LogCorrupt, LogError, LogUnavailable, open_log
from tests.support.events import tool
from tests.support.running_proxy import read_events


def launched(k):
    return ExecutionLaunched(time_us=k, group_id="g", execution_id=f"e-{k}", index=k)


@pytest.fixture
def log(tmp_path):
    log = open_log(f"sqlite://{tmp_path}/log.db")
    yield log
    log.close()


async def test_many_at_once_are_few_batches_in_order(log):
    append, batches = log.append, []
    log.append = lambda events: batches.append(len(events)) or append(events)
    writer = EventWriter(log, pending_max=8, batch_max=4)
    await asyncio.gather(*(writer.append(launched(k)) for k in range(50)))
    await writer.stop()
    assert [e.execution_id for e in read_events(log, "executions")] == [f"e-{k}" for k in range(50)]
    assert max(batches) == 4
    assert len(batches) <= 20


async def test_a_first_event_goes_at_once_and_what_comes_meanwhile_goes_together(log):
    append, batches, held = log.append, [], threading.Event()

    def slow(events):
        batches.append(len(events))
        held.wait()
        return append(events)

    log.append = slow
    writer = EventWriter(log)
    first = asyncio.create_task(writer.append(launched(0)))
    while not batches:
        await asyncio.sleep(0)
    rest = [asyncio.create_task(writer.append(launched(k))) for k in range(1, 11)]
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(first, *rest)
    assert batches == [1, 10]
    await writer.stop()


async def test_what_is_in_no_hurry_goes_with_the_next_or_after_its_time(log):
    append, batches = log.append, []
    log.append = lambda events: batches.append([e.execution_id for e in events]) or append(events)
    writer = EventWriter(log)
    long = writer.put(launched(0), launched(1), within_s=3600.0)
    await asyncio.sleep(0.05)
    assert not batches
    await writer.append(launched(2))
    await asyncio.wait_for(long, 5)
    assert batches == [["e-2", "e-0", "e-1"]]
    await asyncio.wait_for(writer.put(launched(3), within_s=0.01), 5)
    last = writer.put(launched(4), within_s=3600.0)
    await asyncio.sleep(0)
    await asyncio.wait_for(writer.stop(), 5)
    await last
    assert batches[1:] == [["e-3"], ["e-4"]]


async def test_several_are_written_as_one_or_not_at_all(log):
    writer = EventWriter(log)
    bad = ExecutionFinished(time_us=0, group_id="g", execution_id="bad", status="tired", calls=0)
    results = await asyncio.gather(
        writer.append(launched(0)),
        writer.append(launched(1), bad),
        writer.append(launched(2)),
        return_exceptions=True,
    )
    assert isinstance(results[1], EventError)
    await writer.append()
    await writer.stop()
    assert [e.execution_id for e in read_events(log, "executions")] == ["e-0", "e-2"]


async def test_a_bad_event_takes_no_other_along(log):
    writer = EventWriter(log)
    bad = ExecutionFinished(time_us=0, group_id="g", execution_id="bad", status="tired", calls=0)
    results = await asyncio.gather(
        *(writer.append(e) for e in (launched(0), bad, launched(1))), return_exceptions=True
    )
    assert results[0] is results[2] is None
    assert isinstance(results[1], EventError)
    assert [e.execution_id for e in read_events(log, "executions")] == ["e-0", "e-1"]
    await writer.stop()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LogUnavailable("busy"), "could not be reached for 0.2 s; 1 events are not in it: busy"),
        (LogCorrupt("torn page"), "torn page"),
        (RuntimeError("bug"), "the log failed with RuntimeError: bug"),
    ],
)
async def test_what_the_log_raises_is_raised(log, error, words):
    def failing(events):
        raise error

    log.append = failing
    writer = EventWriter(log, retry_s_max=0.2)
    with pytest.raises(LogError, match=words):
        await writer.append(launched(0))
    await writer.stop()


async def test_the_queue_has_a_bound_and_stop_waits(log):
    append, gate = log.append, threading.Event()

    def held(events):
        gate.wait()
        return append(events)

    log.append = held
    writer = EventWriter(log, pending_max=2, batch_max=1)
    waiting = [asyncio.create_task(writer.append(launched(k))) for k in range(9)]
    await asyncio.sleep(0.1)
    assert (writer._count, len(writer._outside)) == (2, 7)
    gate.set()
    await asyncio.gather(*waiting)
    await writer.stop()
    assert len(read_events(log, "executions")) == 9


async def test_the_bytes_that_wait_have_a_bound_and_an_event_that_is_larger_goes_alone(log):
    append, gate, sizes = log.append, threading.Event(), []

    def held(events):
        gate.wait()
        sizes.append(sum(len(e.result) for e in events))
        return append(events)

    log.append = held
    writer = EventWriter(log, pending_bytes_max=100_000, batch_bytes_max=60_000)
    large = [tool("g", k, b"x" * size) for k, size in enumerate([200_000, *[25_000] * 12, 200_000])]
    waiting = [asyncio.create_task(writer.append(e)) for e in large]
    await asyncio.sleep(0.1)
    assert writer._count == 1, "the first is on its way, and there is no room beside it"
    waiting[5].cancel()
    gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    await writer.stop()
    assert writer._bytes == writer._count == 0
    assert max(sizes) == 200_000
    assert sorted(sizes)[-3] <= 85_000, "the last of a batch may go over its bound"
    assert [e.tool_call_id for e in read_events(log, "tools")] == [str(k) for k in range(14) if k != 5]
