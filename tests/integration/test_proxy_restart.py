"""A proxy that is started again goes on with the executions that are live, from the log alone."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from ingest.proxy import executions
from ingest.proxy.execution import Recall
from ingest.proxy.recall import Since, known, recall
from lake.events import ExecutionFinished, ExecutionLaunched, ReplyUndelivered
from lake.follow import offset_since
from lake.log import now_us, open_log
from tests.support.driven_execution import TOOLS, call_text, result, user, whole
from tests.support.running_proxy import LIMITS, read_events, running_proxy, until
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder

THINKING = "<think>\nI  see. \n</think>\n\nLooking.\n" + call_text('{"command":  "ls"}')


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def log(tmp_path):
    log = open_log(f"sqlite://{tmp_path}/log.db?partitions=3")
    yield log
    log.close()


@pytest.fixture
def says():
    return []


@pytest.fixture
async def engine(model, says):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    async with ScriptedEngine(tokenizer, lambda _: says.pop(0) if says else Say("yes")) as engine:
        yield engine


def launch(log, *executions):
    log.append(
        [
            ExecutionLaunched(time_us=now_us(), group_id=g, execution_id=e, index=k)
            for k, (g, e) in enumerate(executions)
        ]
    )


def continued(engine, k):
    """Whether request k begins with request k - 1 and what was sampled."""
    before, now = engine.asked[k - 1], engine.asked[k]
    return now.ids[: len(before.ids) + len(before.output_ids)] == before.ids + before.output_ids


async def test_a_conversation_goes_on_as_if_nothing_had_been(log, model, engine, says):
    launch(log, ("g-1", "e-1"), ("g-2", "e-2"))
    says += [Say(THINKING), Say("<think>\nwell\n</think>\n\nplain"), Say("third")]
    messages = [user("u")]
    async with running_proxy(log, model, engine.url) as proxy:
        _, body = await proxy.answer(messages, tools=TOOLS)
        first = body["choices"][0]["message"]
    messages += [first, result(first, "r")]
    async with running_proxy(log, model, engine.url) as proxy:
        _, body = await proxy.answer(messages, tools=TOOLS)
        # Its client drops reasoning, and this turn has no call to be known by.
        messages += [{"role": "assistant", "content": body["choices"][0]["message"]["content"]}, user("v")]
    async with running_proxy(log, model, engine.url) as proxy:
        await proxy.answer(messages, tools=TOOLS)
        _, body = await proxy.answer([user("new")], tools=TOOLS)
        assert await proxy.close() == (200, {"calls": 4})
        calls = proxy.calls()
    assert continued(engine, 1)
    assert continued(engine, 2)
    assert [c.relation for c in calls.values()] == ["restarts", "extends", "extends", "restarts"]
    assert [c.parent_call_id for c in calls.values()][:3] == [None, 0, 1]
    for k, asked in enumerate(engine.asked):
        assert whole(calls, k) == asked.ids + asked.output_ids
    (tool,) = read_events(log, "tools")
    assert (tool.arguments, tool.result, tool.call_id) == (b'{"command":  "ls"}', b"r", 0)


async def test_a_reply_that_the_first_process_took_along_is_answered_from_the_log(log, model, engine, says):
    launch(log, ("g-1", "e-1"))
    says += [Say(THINKING), Say("second")]
    async with running_proxy(log, model, engine.url) as proxy:
        _, before = await proxy.answer([user("u")], tools=TOOLS)
    async with running_proxy(log, model, engine.url) as proxy:
        _, again = await proxy.answer([user("u")], tools=TOOLS)
        assert again["choices"] == before["choices"]
        assert again["usage"] == before["usage"]
        assert len(engine.asked) == 1
        _, other = await proxy.answer([user("u")], tools=TOOLS)
        assert other["choices"][0]["message"]["content"] == "second"


async def test_a_reply_that_was_gone_on_after_is_not_given_twice(log, model, engine, says):
    launch(log, ("g-1", "e-1"))
    says += [Say("one"), Say("two"), Say("three")]
    async with running_proxy(log, model, engine.url) as proxy:
        await proxy.answer([user("u")])
        await proxy.answer([user("u"), {"role": "assistant", "content": "one"}, user("v")])
    async with running_proxy(log, model, engine.url) as proxy:
        _, body = await proxy.answer([user("u")])
    assert body["choices"][0]["message"]["content"] == "three"


async def test_a_call_that_was_given_up_is_retried_by_the_next_process(log, model, engine, says):
    launch(log, ("g-1", "e-1"))
    says += [Say("half", hold=asyncio.Event()), Say("whole")]
    async with running_proxy(log, model, engine.url) as proxy:
        gone = asyncio.create_task(proxy.answer([user("u")]))
        await until(lambda: engine.asked)
        gone.cancel()
        await until(lambda: read_events(log, "calls"))
    async with running_proxy(log, model, engine.url) as proxy:
        await proxy.answer([user("u")])
        calls = proxy.calls()
    assert [(c.delivered, c.retry_of) for c in calls.values()] == [(False, None), (True, 0)]
    assert calls[1].shared_len == len(engine.asked[0].ids)


async def test_states_that_do_not_fit_are_made_again_from_the_log(log, model, engine, says):
    small = replace(LIMITS, state_bytes_max=1)
    names = [("g-1", "e-1"), ("g-2", "e-2"), ("g-3", "e-3")]
    histories = {e: [user(f"task of {e}")] for _, e in names}
    async with running_proxy(log, model, engine.url, small) as proxy:
        for round_ in range(3):
            for group, execution in names:
                says.append(Say(f"answer {round_} of {execution}"))
                headers = proxy.headers(execution, group)
                async with proxy.ask(histories[execution], execution, headers=headers) as reply:
                    body = await reply.json()
                histories[execution] += [body["choices"][0]["message"], user("go on")]
                async with proxy.session.get(f"{proxy.url}/health") as reply:
                    assert (await reply.json())["executions"] <= 1
    calls = read_events(log, "calls")
    assert sorted(c.relation for c in calls) == ["extends"] * 6 + ["restarts"] * 3


async def test_many_that_come_back_at_once_are_read_in_few_looks(log, model, engine, monkeypatch):
    names = [("g-1", f"e-{k}") for k in range(12)]
    launch(log, *names)
    async with running_proxy(log, model, engine.url) as proxy:
        for _, name in names:
            await proxy.answer([user(name)], name)
    looks = []
    monkeypatch.setattr(
        "ingest.proxy.executions.recall", lambda log, wanted: looks.append(len(wanted)) or recall(log, wanted)
    )
    async with running_proxy(log, model, engine.url) as proxy:
        follow = [
            proxy.answer([user(n), {"role": "assistant", "content": "yes"}, user("x")], n)
            for _, n in names
            for _, n in names
        ]
        assert {status for status, _ in await asyncio.gather(*follow)} == {200}
    assert sum(looks) == len(names)
    assert len(looks) <= 3
    assert sum(c.relation == "extends" for c in read_events(log, "calls")) == len(names)


async def test_nobody_goes_on_with_a_state_that_is_half_made(log, model, engine, monkeypatch):
    launch(log, ("g-1", "e-1"))
    async with running_proxy(log, model, engine.url) as proxy:
        await proxy.answer([user("u")])
    begun, go = threading.Event(), threading.Event()

    def slowly(execution, found, made=executions._recalled):
        begun.set()
        go.wait(20)
        made(execution, found)

    monkeypatch.setattr(executions, "_recalled", slowly)
    follow = [user("u"), {"role": "assistant", "content": "yes"}]
    async with running_proxy(log, model, engine.url) as proxy:
        one = asyncio.create_task(proxy.answer([*follow, user("v")]))
        await until(begun.is_set)
        two = asyncio.create_task(proxy.answer([*follow, user("w")]))
        await asyncio.sleep(0.1)
        go.set()
        assert [status for status, _ in await asyncio.gather(one, two)] == [200, 200]
    first, *later = engine.asked
    whole_first = first.ids + first.output_ids
    assert [asked.ids[: len(whole_first)] == whole_first for asked in later] == [True, True]
    assert [c.call_id for c in read_events(log, "calls")] == [0, 1, 2]


def test_what_is_read_begins_with_the_earliest_launch(log):
    launch(log, ("g-1", "old"))
    log.append([ExecutionFinished(time_us=1, group_id="g-1", execution_id="old", status="lost", calls=0)])
    launch(log, ("g-2", "new"))
    log.append([ReplyUndelivered(time_us=1, group_id="g-2", execution_id="new", call_id=3)])
    found = known(log)
    assert (set(found.live), found.finished) == ({"new"}, {"old"})
    assert recall(log, found.live) == {"new": Recall(undelivered={3})}
    assert recall(log, {}) == {}


def test_the_offset_of_a_time(log):
    assert offset_since(log, ("executions", 0), now_us()) == 0
    for k in range(7):
        log.append([ReplyUndelivered(time_us=1, group_id="g-1", execution_id="e", call_id=k)])
    (lane,) = [("executions", p) for p, end in log.end_offsets("executions").items() if end]
    reader = log.reader({lane: 0})
    appended = [r.appended_us for r in reader.poll(5.0)]
    reader.close()
    assert len(appended) == 7
    for k, time_us in enumerate(appended):
        assert appended[offset_since(log, lane, time_us)] == time_us
        assert offset_since(log, lane, time_us) <= k
    assert offset_since(log, lane, appended[-1] + 1) == 7
    assert offset_since(log, lane, 0) == 0


async def test_an_execution_whose_calls_are_not_all_in_the_log_is_refused_by_name(log, model, engine):
    launch(log, ("g-1", "e-1"))
    async with running_proxy(log, model, engine.url) as proxy:
        for text in ("u", "v"):
            await proxy.answer([user(text)])
    lacking = open_log("sqlite://" + str(log._path).replace("log.db", "other.db") + "?partitions=3")
    launch(lacking, ("g-1", "e-1"))
    lacking.append([c for c in read_events(log, "calls") if c.call_id == 1])
    async with running_proxy(lacking, model, engine.url) as proxy:
        status, body = await proxy.answer([user("w")])
        assert (status, body["error"]["code"]) == (503, "log_unavailable")
        assert "calls [0] are not there" in body["error"]["message"]
    lacking.close()


def test_a_recall_reads_over_other_groups(log):
    launch(log, ("g-1", "e-1"), ("g-2", "e-2"))
    since = {"e-1": Since("g-1", now_us())}
    assert set(recall(log, since)) == {"e-1"}
