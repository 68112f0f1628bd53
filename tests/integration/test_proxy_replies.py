"""Replies that are lost on their way, and clients that ask again: one answer, one recorded call."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lake.events import ReplyUndelivered
from tests.support.driven_execution import TOOLS, call_text, user
from tests.support.running_proxy import LIMITS, read_events, running_proxy, until
from tests.support.scripted_engine import Say


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
