"""Replies that are lost on their way, and clients that ask again: one answer, one recorded call."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from ingest.engines.client import EngineClient
from lake.events import ReplyUndelivered
from tests.support.driven_execution import TOOLS, call_text, user
from tests.support.running_proxy import LIMITS, read_events, running_proxy, until
from tests.support.scripted_engine import Say


def text_of(body):
    return body["choices"][0]["message"]["content"]


async def running_of(proxy):
    async with proxy.session.get(f"{proxy.url}/health") as reply:
        return (await reply.json())["running"]


async def lose_a_reply(proxy, log, messages, **body):
    """The client leaves between the record and the reply: the log's append is made slow to show it."""
    append, slow = log.append, asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(events):
        offsets = append(events)
        if events[0].TYPE == "model.called":
            loop.call_soon_threadsafe(recorded.set)
            asyncio.run_coroutine_threadsafe(slow.wait(), loop).result()
        return offsets

    recorded = asyncio.Event()
    log.append = held
    task = asyncio.create_task(proxy.answer(messages, **body))
    await recorded.wait()
    task.cancel()
    await asyncio.sleep(0.1)
    slow.set()
    log.append = append
    async with asyncio.timeout(20):
        while await running_of(proxy):
            await asyncio.sleep(0.005)


async def test_a_client_that_timed_out_and_asks_again_joins_its_call(log, model, engine, script):
    hold = asyncio.Event()
    script.says = [Say("slow", hold=hold), Say("never")]
    async with running_proxy(log, model, engine.url, replace(LIMITS, rejoin_s=30.0)) as proxy:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await proxy.answer([user("u")])
        asyncio.get_running_loop().call_later(0.2, hold.set)
        async with proxy.ask([user("u")], stream=True) as reply:
            assert "slow" in await reply.text()
        assert len(engine.asked) == 1
        assert [(c.delivered, c.retry_of) for c in proxy.calls().values()] == [(True, None)]


async def test_a_call_that_nobody_came_back_for_is_aborted(log, model, engine, script):
    script.says = [Say("slow", hold=asyncio.Event())]
    async with running_proxy(log, model, engine.url, replace(LIMITS, rejoin_s=0.3)) as proxy:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await proxy.answer([user("u")])
        await until(proxy.calls)
        assert engine.asked[0].aborted
        assert [c.delivered for c in proxy.calls().values()] == [False]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_lost_reply_is_answered_from_its_record(proxy, engine, script, log, stream):
    script.says = [Say("<think>\nhm\n</think>\n\n" + call_text('{"a":  1}')), Say("done")]
    await lose_a_reply(proxy, log, [user("u")], tools=TOOLS)
    async with proxy.ask([user("u")], tools=TOOLS, stream=stream, max_tokens=9) as reply:
        text = await reply.text()
    assert '"arguments":"{\\"a\\":  1}"' in text
    assert '"reasoning_content":"hm"' in text
    assert len(engine.asked) == 1
    (call,) = proxy.calls().values()
    assert (call.delivered, call.retry_of) == (True, None)
    _, again = await proxy.answer([user("u")], tools=TOOLS)  # delivered now: a new sibling
    assert again["choices"][0]["message"]["content"] == "done"
    assert proxy.calls()[1].retry_of is None
    assert await proxy.close() == (200, {"calls": 2})
    assert read_events(log, "executions") == []


async def test_a_reply_that_stays_lost_is_told_at_the_end(proxy, log):
    await lose_a_reply(proxy, log, [user("u")])
    assert read_events(log, "executions") == []
    assert await proxy.close() == (200, {"calls": 1})
    (undelivered,) = read_events(log, "executions")
    assert isinstance(undelivered, ReplyUndelivered)
    assert undelivered.call_id == 0


async def test_who_goes_on_after_a_reply_has_got_it(proxy, script, log):
    """The whole reply was read, and the connection broke only then."""
    script.says = [Say("yes"), Say("more")]
    await lose_a_reply(proxy, log, [user("u")])
    await proxy.answer([user("u"), {"role": "assistant", "content": "yes"}, user("v")])
    assert proxy.calls()[1].relation == "extends"
    await proxy.close()
    assert read_events(log, "executions") == []


async def test_a_call_that_is_being_given_up_is_waited_for_when_its_execution_closes(
    log, model, engine, script
):
    """The same was asked again meanwhile, and answered: both are calls of the execution."""
    aborting = asyncio.Event()

    class Slow(EngineClient):
        async def abort(self, rid):
            await aborting.wait()
            await super().abort(rid)

    script.says = [Say("first", hold=asyncio.Event()), Say("second")]
    slow = Slow(engine.url)
    async with running_proxy(log, model, slow, replace(LIMITS, abort_s_max=20.0)) as proxy:
        gone = asyncio.create_task(proxy.answer([user("u")]))
        await until(lambda: engine.asked)
        gone.cancel()
        await asyncio.sleep(0.1)
        _, body = await proxy.answer([user("u")])
        assert text_of(body) == "second"
        closing = asyncio.create_task(proxy.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        aborting.set()
        assert await closing == (200, {"calls": 2})
        assert [(c.delivered, c.call_id) for c in proxy.calls().values()] == [(True, 0), (False, 1)]
    await slow.close()


async def test_who_asks_again_while_the_answer_is_recorded_waits_for_the_record(log, model, engine, script):
    script.says = [Say("one"), Say("two")]
    appending, go = threading.Event(), threading.Event()
    append = log.append

    def slowly(events):
        if events[0].TOPIC == "calls":
            appending.set()
            go.wait(20)
        return append(events)

    log.append = slowly
    async with running_proxy(log, model, engine.url) as proxy:
        gone = asyncio.create_task(proxy.answer([user("u")]))
        await until(appending.is_set)
        gone.cancel()
        await asyncio.sleep(0.1)
        again = asyncio.create_task(proxy.answer([user("u")]))
        await asyncio.sleep(0.1)
        assert not again.done()
        go.set()
        assert text_of((await again)[1]) == "one"
        assert (await proxy.close())[1] == {"calls": 1}


async def test_who_comes_back_has_all_the_time_to_do_it_again(log, model, engine, script):
    hold = asyncio.Event()
    script.says = [Say("one", hold=hold)]
    async with running_proxy(log, model, engine.url, replace(LIMITS, rejoin_s=0.5)) as proxy:
        for _ in range(4):  # each leaves before the time of the one before is over
            gone = asyncio.create_task(proxy.answer([user("u")]))
            await asyncio.sleep(0.3)
            gone.cancel()
            await asyncio.sleep(0.05)
        again = asyncio.create_task(proxy.answer([user("u")]))
        await asyncio.sleep(0.1)
        hold.set()
        assert text_of((await again)[1]) == "one"
    assert len(engine.asked) == 1


async def test_what_an_engine_sampled_before_everybody_left_is_recorded(log, model, engine, script):
    """The engine ended the call early, and nobody waits for the next attempt any more."""
    script.says = [Say("one and more", fault="abort", partial=2), Say("never", fault="500")]
    async with running_proxy(log, model, engine.url) as proxy:
        gone = asyncio.create_task(proxy.answer([user("u")]))
        await until(lambda: len(engine.asked) == 2)
        gone.cancel()
        await until(proxy.calls)
        (call,) = proxy.calls().values()
        assert (call.delivered, call.n_output, call.finish_reason) == (False, 2, "abort")
