"""The proxy over real HTTP: keys, streams, joins, hang-ups, an engine that fails and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace

import aiohttp
import pytest

from ingest.identity import sign
from lake.events import (
    ExecutionFinished,
    ExecutionLaunched,
    ToolCalled,
    VersionSpan,
    ids_from_bytes,
)
from lake.log import LogUnavailable
from tests.support.driven_execution import TOOLS, call_text, result, user, whole
from tests.support.running_proxy import LIMITS, SECRET, read_events, running_proxy, until
from tests.support.scripted_engine import Say


async def stream_of(reply):
    """(comments, data payloads) of a server-sent stream."""
    text = (await reply.read()).decode()
    blocks = [b for b in text.split("\n\n") if b]
    return [b for b in blocks if b.startswith(":")], [b[6:] for b in blocks if b.startswith("data: ")]


# --------------------------------------------------------------------------------- the answer
async def test_a_call_is_answered_and_recorded(proxy, engine, log):
    status, body = await proxy.answer([user("u")], temperature=0.5, max_tokens=7)
    assert status == 200
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    ]
    (asked,) = engine.asked
    n = len(asked.ids)
    assert body["usage"] == {
        "prompt_tokens": n,
        "completion_tokens": len(asked.output_ids),
        "total_tokens": n + len(asked.output_ids),
        "prompt_tokens_details": {"cached_tokens": n // 2},
    }
    assert asked.body["sampling_params"]["max_new_tokens"] == 7
    assert asked.body["sampling_params"]["temperature"] == 0.5
    (event,) = read_events(log, "calls")
    assert whole({0: event}, 0) == asked.ids + asked.output_ids
    assert (event.group_id, event.execution_id, event.role) == ("g-1", "e-1", "main")
    assert (event.temperature, event.cached_tokens, event.engine) == (0.5, n // 2, engine.url)
    assert json.loads(event.sampling)["new_tokens_max"] == 7
    assert event.spans == (VersionSpan(0, 0, event.n_output),)
    assert 0 < event.started_us <= event.finished_us
    assert event.delivered


async def test_defaults_and_clamps(proxy, engine):
    await proxy.answer([user("u")])
    assert engine.asked[0].body["sampling_params"]["max_new_tokens"] == LIMITS.new_tokens_max
    await proxy.answer([user("v")], max_completion_tokens=128_000)
    room = LIMITS.context_tokens - len(engine.asked[1].ids)
    assert engine.asked[1].body["sampling_params"]["max_new_tokens"] == room


async def test_a_conversation_with_tools(proxy, engine, script, log):
    odd = '{"command" :  "echo h\\u00e9"}'
    script.says = [Say("<think>\nhm\n</think>\n\n" + call_text(odd)), Say("done")]
    _, first = await proxy.answer([user("u")], tools=TOOLS)
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "hm"
    assert message["tool_calls"][0]["function"]["arguments"] == odd
    await proxy.answer([user("u"), message, result(message, "hé")], tools=TOOLS)
    one, two = engine.asked
    assert two.ids[: len(one.ids) + len(one.output_ids)] == one.ids + one.output_ids
    (tool,) = read_events(log, "tools")
    assert isinstance(tool, ToolCalled)
    assert (tool.arguments, tool.result) == (odd.encode(), "hé".encode())
    assert tool.started_us <= tool.stopped_us
    assert proxy.calls()[1].relation == "extends"


@pytest.mark.parametrize("include_usage", [True, False])
async def test_streaming(proxy, script, include_usage):
    """Case 19: a last chunk with usage and no choices where it was asked for, none otherwise."""
    hold = asyncio.Event()
    script.says = [Say(call_text("{}"), hold=hold)]
    options = {"stream_options": {"include_usage": include_usage}} if include_usage else {}
    async with proxy.ask([user("u")], tools=TOOLS, stream=True, **options) as reply:
        assert reply.status == 200  # headers before the engine has answered
        assert reply.headers["content-type"].startswith("text/event-stream")
        asyncio.get_running_loop().call_later(0.3, hold.set)
        comments, data = await stream_of(reply)
    assert len(comments) >= 3
    assert data.pop() == "[DONE]"
    chunks = [json.loads(d) for d in data]
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert [c["choices"] for c in chunks[2:]] == ([[]] if include_usage else [])
    assert all(bool(c.get("usage")) == (not c["choices"]) for c in chunks)


# -------------------------------------------------------------------------------------- keys
async def test_keys(proxy):
    cases = [
        ({}, 401, "bad_token"),
        ({"Authorization": "Bearer sk-1"}, 401, "bad_token"),
        ({"X-Api-Key": sign(b"x" * 32, "g-1", "e-1")}, 401, "bad_token"),
        ({"X-Api-Key": sign(SECRET, "g-1", "e-2")}, 403, "other_execution"),
        ({"X-Api-Key": sign(SECRET, "g-1", "e-1")}, 200, None),
        ({"authorization": f"bearer {sign(SECRET, 'g-1', 'e-1')}"}, 200, None),
    ]
    for headers, status, code in cases:
        async with proxy.ask([user("u")], headers=headers) as reply:
            assert reply.status == status
            body = await reply.json()
            assert code is None or body["error"]["code"] == code
            assert code is None or len(body["error"]["message"]) > 20
    for method, path in (("GET", "v1/models"), ("POST", "close")):
        async with proxy.session.request(method, f"{proxy.url}/x/e-1/{path}") as reply:
            assert reply.status == 401
    async with proxy.session.get(f"{proxy.url}/x/e-1/v1/models", headers=proxy.headers()) as reply:
        assert (await reply.json())["data"][0]["id"] == "policy"
    async with proxy.session.get(f"{proxy.url}/health") as reply:
        assert (await reply.json())["status"] == "ok"


async def test_roles_by_path(proxy):
    for role in ("main", "sub-agent", "main-summary", "sub-agent-summary", "auxiliary"):
        assert (await proxy.answer([user(role)], role=role))[0] == 200
    assert [c.role for c in proxy.calls().values()][1] == "sub-agent"
    status, body = await proxy.answer([user("u")], role="boss")
    assert (status, body["error"]["code"]) == (404, "unknown_role")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"n": 2}, "one choice"),
        ({"stop": ["x"]}, "stop strings"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 1.0}, "penalties"),
        ({"functions": [{"name": "f"}]}, "give them as tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "oracle"),
        ({"messages": "x"}, "Expected `array`"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(proxy, body, words):
    status, answer = await proxy.answer(**({"messages": [user("u")]} | body))
    assert status == 400
    assert words in answer["error"]["message"]


async def test_half_a_surrogate_pair_is_no_character(proxy, engine):
    body = b'{"messages": [{"role": "user", "content": "cut \\ud83d"}]}'
    url = f"{proxy.url}/x/e-1/v1/chat/completions"
    async with proxy.session.post(url, data=body, headers=proxy.headers()) as reply:
        assert reply.status == 200
    assert "user\ncut \ufffd<|im_end|>" in engine.asked[0].prompt
    deep = b'{"messages": [{"role": "user", "content": "u"}], "tools": [{"x": %b}]}' % (
        b"[" * 9999 + b"]" * 9999
    )
    for wrong in (b"{", b"\xff", deep):
        async with proxy.session.post(url, data=wrong, headers=proxy.headers()) as reply:
            assert reply.status == 400


# ------------------------------------------------------------------------------------ limits
async def test_a_body_that_does_not_come(log, model, engine):
    async with running_proxy(log, model, engine.url, replace(LIMITS, body_s_max=0.1)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))
        key = proxy.headers()["Authorization"]
        writer.write(
            b"POST /x/e-1/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n"
            + f"authorization: {key}\r\n\r\n{{".encode()
        )
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_limits(log, model, engine, script):
    limits = replace(
        LIMITS, context_tokens=60, body_bytes_max=2000, calls_per_execution_max=1, executions_max=1
    )
    async with running_proxy(log, model, engine.url, limits) as proxy:
        for stream in (False, True):
            status, body = await proxy.answer([user("many " * 60)], stream=stream)
            assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
            assert "60 tokens" in body["error"]["message"]
        status, body = await proxy.answer([user("x" * 2000)])
        assert (status, body["error"]["code"]) == (413, "body_too_large")
        script.says = [Say("yes", hold=asyncio.Event())]
        running = asyncio.create_task(proxy.answer([user("u")]))
        await until(lambda: engine.asked)
        status, body = await proxy.answer([user("v")])
        assert (status, body["error"]["code"]) == (429, "too_many_calls")
        status, body = await proxy.answer([user("v")], execution="e-2")
        assert (status, body["error"]["code"]) == (429, "too_many_executions")
        script.says[0].hold.set()
        assert (await running)[0] == 200


# --------------------------------------------------------------------- engines that fail
@pytest.mark.parametrize("fault", ["500", "429", "drop"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_harness_sees_one_slow_call(proxy, engine, script, fault, stream):
    """Case 26, and 5xx that would end a run in two seconds."""
    script.says = [Say("part of it", fault=fault), Say("part of it", fault=fault), Say("yes")]
    async with proxy.ask([user("u")], stream=stream) as reply:
        assert reply.status == 200
        text = await reply.text()
    assert '"content":"yes"' in text
    assert [a.ids for a in engine.asked] == [engine.asked[0].ids] * 3
    assert len({a.body["rid"] for a in engine.asked}) == 3
    assert len(proxy.calls()) == 1


async def test_an_aborted_call_is_gone_on_from_where_it_stood(proxy, engine, script):
    """Case 26; each version has its span, and no token of the first attempts is lost."""
    script.says = [
        Say("one two three", fault="abort", partial=2, versions=[("4", 0, 2)]),
        Say("four five", fault="abort", partial=1, versions=[("5", 0, 1)]),
        Say(" yes", versions=[("5", 0, 3)]),
    ]
    script.says[2].versions = [("5", 0, len(engine.tokenizer.encode(" yes").ids) + 1)]
    status, body = await proxy.answer([user("u")], max_tokens=50)
    assert status == 200
    first, second, third = engine.asked
    assert second.ids == first.ids + first.output_ids
    assert third.ids == second.ids + second.output_ids
    sampled = first.output_ids + second.output_ids + third.output_ids
    (call,) = proxy.calls().values()
    assert ids_from_bytes(call.output_ids).tolist() == sampled
    assert call.spans == (VersionSpan(4, 0, 2), VersionSpan(5, 2, len(sampled)))
    assert [a.body["sampling_params"]["max_new_tokens"] for a in engine.asked] == [50, 48, 47]
    assert "dropped_tokens" not in call.sampling
    assert body["usage"]["completion_tokens"] == len(sampled)
    assert body["choices"][0]["message"]["content"] == engine.tokenizer.decode(sampled[:-1])


async def test_what_is_not_gone_on_from_is_counted(log, model, engine, script):
    script.says = [Say("one two three", fault="abort", partial=2, versions=[("4", 0, 2)]), Say("yes")]
    async with running_proxy(log, model, engine.url, replace(LIMITS, continue_aborted=False)) as proxy:
        _, body = await proxy.answer([user("u")])
        (call,) = proxy.calls().values()
    assert body["choices"][0]["message"]["content"] == "yes"
    assert json.loads(call.sampling)["dropped_tokens"] == 2


async def test_a_limit_that_is_reached_by_parts_is_a_limit(proxy, engine, script):
    script.says = [Say("one two three", fault="abort", partial=2, versions=[("4", 0, 2)])]
    _, body = await proxy.answer([user("u")], max_tokens=2)
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(engine.asked) == 1


async def test_an_engine_that_comes_back(proxy, engine, script):
    await engine.__aexit__()
    call = asyncio.create_task(proxy.answer([user("u")]))
    await asyncio.sleep(0.2)
    assert not call.done()
    await engine.__aenter__()
    assert (await call)[0] == 200


async def test_an_engine_that_stays_away(log, model, engine, script):
    script.says = [Say(fault="500")]
    async with running_proxy(log, model, engine.url, replace(LIMITS, engine_wait_s_max=0.3)) as proxy:
        status, body = await proxy.answer([user("u")])
        assert (status, body["error"]["code"]) == (503, "engine_unavailable")
        async with proxy.ask([user("v")], stream=True) as reply:
            _, data = await stream_of(reply)
        assert json.loads(data[-1])["error"]["code"] == "engine_unavailable"
        assert await proxy.close() == (200, {"calls": 0})


async def test_versions_unknown_and_several(proxy, script):
    """Cases 27, 28 and 40."""
    script.says = [Say("yes", versions=[("3", 0, 1), ("4", 1, 4)]), Say("yes", versions=[])]
    script.says[0].ids = [1, 2, 3, 4]
    await proxy.answer([user("u")])
    await proxy.answer([user("v")])
    calls = proxy.calls()
    assert calls[0].spans == (VersionSpan(3, 0, 1), VersionSpan(4, 1, 4))
    assert calls[1].spans == ()


# --------------------------------------------------------------------- joins and hang-ups
async def test_the_same_request_joins_the_running_one(proxy, engine, script):
    hold = asyncio.Event()
    script.says = [Say("yes", hold=hold)]
    first = asyncio.create_task(proxy.answer([user("u")], max_tokens=10))
    await until(lambda: engine.asked)
    async with proxy.ask([user("u")], max_tokens=64_000, stream=True) as reply:
        hold.set()
        _, data = await stream_of(reply)
    _, body = await first
    assert json.loads(data[0])["choices"][0]["delta"]["content"] == body["choices"][0]["message"]["content"]
    assert json.loads(data[0])["id"] == body["id"]
    assert len(engine.asked) == 1
    await proxy.answer([user("u")])  # after a delivered reply: a new sibling, no retry
    assert proxy.calls()[1].retry_of is None
    assert proxy.calls()[1].difference == "the same messages as call 0"


async def hang_up(proxy, engine, n=1, **body):
    """Ask on a connection of its own, and leave once the engine has the n-th request."""
    async with aiohttp.ClientSession() as session:
        url = f"{proxy.url}/x/e-1/v1/chat/completions"
        request = json.dumps({"model": "m", "messages": [user("u")], **body})
        task = asyncio.create_task(session.post(url, data=request, headers=proxy.headers()))
        await until(lambda: len(engine.asked) >= n)
        if not body.get("stream"):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await task).close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hang_up_aborts_and_the_next_try_is_its_retry(proxy, engine, script, stream):
    """Case 30."""
    script.says = [Say("a long answer", hold=asyncio.Event()), Say("yes")]
    await hang_up(proxy, engine, stream=stream)
    await until(lambda: engine.asked[0].aborted and proxy.calls())
    (lost,) = proxy.calls().values()
    assert (lost.delivered, lost.finish_reason) == (False, "abort")
    assert ids_from_bytes(lost.output_ids).tolist() == engine.asked[0].output_ids
    assert lost.n_output == 3
    await proxy.answer([user("u")])
    calls = proxy.calls()
    assert (calls[1].retry_of, calls[1].delivered) == (0, True)
    assert await proxy.close() == (200, {"calls": 2})


async def test_one_of_two_hangs_up_and_the_other_gets_the_answer(proxy, engine, script):
    hold = asyncio.Event()
    script.says = [Say("yes", hold=hold)]
    other = asyncio.create_task(proxy.answer([user("u")]))
    await until(lambda: engine.asked)
    joiner = asyncio.create_task(proxy.answer([user("u")]))
    await asyncio.sleep(0.1)
    joiner.cancel()
    await asyncio.sleep(0.1)
    hold.set()
    assert (await other)[0] == 200
    assert [c.delivered for c in proxy.calls().values()] == [True]


# -------------------------------------------------------------------------------------- ends
async def test_close_counts_aborts_and_shuts(proxy, engine, script):
    await proxy.answer([user("u")])
    script.says = [Say("never", hold=asyncio.Event())]
    running = asyncio.create_task(proxy.answer([user("v")]))
    await until(lambda: len(engine.asked) == 2)
    assert await proxy.close() == (200, {"calls": 2})
    assert (await running)[0] == 409
    assert sorted(proxy.calls()) == [0, 1]
    assert [c.delivered for c in proxy.calls().values()] == [True, False]
    status, body = await proxy.answer([user("w")])
    assert (status, body["error"]["code"]) == (409, "execution_closed")
    assert await proxy.close() == (200, {"calls": 2})
    assert await proxy.close("e-none") == (200, {"calls": 0})


async def test_a_finished_execution_takes_no_calls_of_a_later_proxy(log, model, engine):
    log.append(
        [
            ExecutionLaunched(time_us=1, group_id="g-1", execution_id="e-1", index=0),
            ExecutionFinished(time_us=2, group_id="g-1", execution_id="e-1", status="completed", calls=0),
        ]
    )
    async with running_proxy(log, model, engine.url) as proxy:
        status, body = await proxy.answer([user("u")])
        assert (status, body["error"]["code"]) == (409, "execution_closed")
        assert (await proxy.close())[0] == 409


async def test_a_log_that_fails_fails_the_call_by_name(proxy, log):
    def broken(events):
        raise RuntimeError("disk on fire")

    append, log.append = log.append, broken
    status, body = await proxy.answer([user("u")])
    assert (status, body["error"]["code"]) == (503, "log_unavailable")
    assert "disk on fire" in body["error"]["message"]
    log.append = append  # what was lost stays lost: the execution has a hole
    assert (await proxy.answer([user("v")]))[0] == 503
    assert (await proxy.close())[0] == 503
    assert (await proxy.answer([user("v")], execution="e-2"))[0] == 200


async def test_a_log_out_of_reach_for_a_moment(proxy, log):
    append, tries = log.append, []

    def flaky(events):
        tries.append(len(events))
        if len(tries) < 3:
            raise LogUnavailable("busy")
        return append(events)

    log.append = flaky
    assert (await proxy.answer([user("u")]))[0] == 200
    assert len(tries) == 3
    assert len(proxy.calls()) == 1


async def test_many_calls_share_transactions(proxy, log):
    append, batches = log.append, []

    def counting(events):
        batches.append(len(events))
        return append(events)

    log.append = counting
    answers = await asyncio.gather(*(proxy.answer([user(f"u{k}")], execution=f"e-{k}") for k in range(60)))
    assert [status for status, _ in answers] == [200] * 60
    assert sum(batches) == 60
    assert len(batches) < 30
    assert len(read_events(log, "calls")) == 60
