"""The publisher: what many tasks publish goes into few appends, in order, acknowledged or refused."""

import asyncio
import contextlib

import pytest

from ingest.rollouts.publishing import EVENTS_MAX, Publisher
from lake.events import EventError, ExecutionFinished, ExecutionLaunched
from lake.log import LogUnavailable, open_log
from lake.wire import decode


class Unsteady:
    """The real log, which cannot be reached `failures` times; counts the appends that went through."""

    def __init__(self, log, failures=0):
        self.log, self.failures, self.appends = log, failures, []

    def append(self, events):
        if self.failures > 0:
            self.failures -= 1
            raise LogUnavailable("away")
        self.appends.append(len(events))
        return self.log.append(events)


@pytest.fixture
def log(tmp_path):
    made = open_log(f"sqlite://{tmp_path}/log.db")
    yield made
    made.close()


def launched(number):
    return ExecutionLaunched(time_us=1, group_id="g", execution_id=f"g.{number}", index=number)


def written(log):
    reader = log.reader({("executions", 0): 0})
    found = [decode(r.headers, r.value).event_id for r in reader.poll(0, records_max=10_000)]
    reader.close()
    return found


@contextlib.asynccontextmanager
async def publishing(log, **settings):
    publisher = Publisher(log, **settings)
    run = asyncio.create_task(publisher.run())
    try:
        yield publisher, run
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError, LogUnavailable, EventError):
            await run
        await publisher.close()


async def test_what_gathers_goes_into_one_append(log):
    counted = Unsteady(log)
    async with publishing(counted) as (publisher, _):
        await asyncio.gather(*(publisher.publish([launched(n)]) for n in range(600)))
        assert written(log) == [f"g.{n}:launched" for n in range(600)]
    assert sum(counted.appends) == 600
    assert len(counted.appends) <= 3
    assert max(counted.appends) <= EVENTS_MAX


async def test_more_than_one_append_holds_goes_through(log):
    async with publishing(log) as (publisher, _):
        await publisher.publish([launched(n) for n in range(EVENTS_MAX + 1)])
        assert len(written(log)) == EVENTS_MAX + 1


async def test_a_log_that_comes_back_loses_nothing(log):
    async with publishing(Unsteady(log, failures=3)) as (publisher, _):
        await publisher.publish([launched(0)])
        assert written(log) == ["g.0:launched"]


async def test_a_log_that_stays_away_ends_the_publisher(log):
    async with publishing(Unsteady(log, failures=10**6), patience_s=0.2) as (publisher, run):
        waiting = asyncio.create_task(publisher.publish([launched(0)]))
        with pytest.raises(LogUnavailable):
            await run
        assert not waiting.done(), "nothing is acknowledged that is not in the log"
        waiting.cancel()


async def test_a_bad_event_is_refused(log):
    bad = ExecutionFinished(time_us=1, group_id="g", execution_id="g.0", status="odd", calls=0)
    async with publishing(log) as (publisher, run):
        waiting = asyncio.create_task(publisher.publish([bad]))
        with pytest.raises(EventError, match="odd"):
            await run
        waiting.cancel()
    assert written(log) == []


async def test_closing_writes_what_was_published(log):
    publisher = Publisher(log)
    waiting = asyncio.create_task(publisher.publish([launched(0)]))
    await asyncio.sleep(0)
    waiting.cancel()
    await publisher.close()
    assert written(log) == ["g.0:launched"]
