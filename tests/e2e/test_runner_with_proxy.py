"""The runner against the real capture proxy, in front of an engine that says what a perfect agent says."""

import asyncio
import os
import random
import re
import socket
import sys
from collections import Counter, defaultdict
from contextlib import asynccontextmanager

import aiohttp
import pytest

from ingest.courier.accidents import Accidents
from ingest.courier.chat import Message
from ingest.courier.demonstrations import render
from ingest.courier.harness import SUB_SYSTEM, Request
from ingest.courier.tokenizer import build_tokenizer, save
from lake.events import ids_from_bytes
from tests.e2e.test_runner import World
from tests.support.courier_agents import parsed, perfect
from tests.support.scripted_engine import Say, ScriptedEngine

ANSWER = "<|im_start|>assistant\n"


def understood(prompt):
    """The request that a prompt's text says: what the template wrote, read back."""
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", prompt, re.S)
    messages = tuple(parsed(t) if r == "assistant" else Message(role=r, content=t) for r, t in turns)
    return Request("sub-agent" if messages[0].text == SUB_SYSTEM else "main", messages)


def says(prompt):
    """After a while, so that an impatient client hangs up first."""
    assert prompt.endswith(ANSWER)
    ready = asyncio.Event()
    asyncio.get_running_loop().call_later(random.uniform(0.02, 0.05), ready.set)
    text = render([perfect(understood(prompt))]).removeprefix(ANSWER).removesuffix("<|im_end|>\n")
    return Say(text, hold=ready)


@asynccontextmanager
async def proxy(world, engine, port):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ingest.proxy", "--run", str(world.run.path), "--engine", engine.url,
        "--port", str(port), env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path, group_size=4, concurrent_executions=16)
    save(made.run.weights(0))
    yield made
    made.log.close()


def sequences(calls):
    """call id -> (input ids, output ids) of an execution, put together from its deltas."""
    whole = {}
    for call in sorted(calls, key=lambda c: c.call_id):
        before, after = whole.get(call.parent_call_id, ([], []))
        ids = (before + after)[: call.shared_len] + ids_from_bytes(call.context_ids).tolist()
        whole[call.call_id] = (ids, ids_from_bytes(call.output_ids).tolist())
    return whole


async def test_every_call_is_captured_as_the_engine_saw_it(world):
    world.dispatch(12)
    tokenizer, port = build_tokenizer(), free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        ScriptedEngine(tokenizer, says) as engine,
        proxy(world, engine, port),
        world.runner(url) as process,
    ):
        await world.until(world.settled, process)
    world.check()
    calls = defaultdict(list)
    for event in world.of("model.called"):
        calls[event.execution_id].append(event)
    seen = Counter((tuple(a.ids), tuple(a.output_ids)) for a in engine.asked if not a.aborted)
    scores = {e.execution_id: e for e in world.of("execution.scored")}
    undelivered = {(e.execution_id, e.call_id) for e in world.of("reply.undelivered")}
    for end in world.of("execution.finished"):
        mine = calls[end.execution_id]
        assert [c.call_id for c in sorted(mine, key=lambda c: c.call_id)] == list(range(end.calls))
        given = [c for c in mine if c.delivered and (c.execution_id, c.call_id) not in undelivered]
        for call in given:
            ids, output = sequences(mine)[call.call_id]
            assert seen[tuple(ids), tuple(output)]
            text = tokenizer.decode(ids, skip_special_tokens=False)
            assert render(understood(text).messages, add_generation_prompt=True) == text
            assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        if end.status == "completed":
            assert Counter(c.role for c in given) == {"main": 5, "sub-agent": 2, "main-summary": 1}
            if scores[end.execution_id].assessment == "scored":
                assert scores[end.execution_id].value == 1.0
    hasty = {
        (e.group_id, e.index)
        for e in world.of("execution.launched")
        if any(Accidents.drawn(0, e.group_id, e.index).hangs_up_after_s(c) for c in range(12))
    }
    unread = [c for some in calls.values() for c in some if not c.delivered]
    again = [c for some in calls.values() for c in some if c.retry_of is not None]
    assert unread
    assert {(c.group_id, int(c.execution_id.split(".")[1])) for c in unread + again} <= hasty
    for call in again:
        first = next(c for c in calls[call.execution_id] if c.call_id == call.retry_of)
        assert not first.delivered
        assert (
            sequences(calls[call.execution_id])[call.call_id][0]
            == (sequences(calls[call.execution_id])[first.call_id][0])
        )


async def test_a_proxy_killed_and_started_again(world):
    world.dispatch(10)
    port = free_port()
    async with (
        ScriptedEngine(build_tokenizer(), says) as engine,
        world.runner(f"http://127.0.0.1:{port}") as process,
    ):
        async with proxy(world, engine, port) as first:
            await world.until(lambda: len(world.of("execution.finished")) > 8, process)
            first.kill()
            await first.wait()
        async with proxy(world, engine, port):
            await world.until(world.settled, process)
            async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/health") as health:
                assert (await health.json())["executions"] == 0
    world.check()
    statuses = world.statuses()
    assert 0 < statuses["lost"] <= 16
    assert statuses["crashed"] == 0
