"""Public cases 19-22 and 26-32 (calls, streams, limits) through the real proxy in front of a scripted engine.

Numbers, inputs and right values are those of the project's list of public cases; each test names its issue.
Death, drain and pause of real engines stand in tests/integration/test_engine_dies.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from ingest.engines.client import EngineClient
from ingest.engines.pool import EnginePool
from ingest.identity import sign
from ingest.proxy.app import make_app
from ingest.proxy.calls import Limits
from ingest.proxy.rendering import Renderer
from lake.events import GroupDispatched, ModelCalled, VersionSpan
from lake.log import open_log
from tests.support.asgi import Sent, living, send
from tests.support.driven_execution import TOOLS, call_text, result, user
from tests.support.running_proxy import LIMITS, SECRET, read_events, running_proxy, until
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.three_dialects import DIALECTS, PATHS, body_of, said
from tests.support.tiny_model import write_model_folder

in_all_dialects = pytest.mark.parametrize("dialect", DIALECTS)
streamed_and_not = pytest.mark.parametrize("stream", [False, True])
QUICK = replace(LIMITS, engine_wait_s_max=5.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def log(tmp_path):
    log = open_log(f"sqlite://{tmp_path}/log.db")
    yield log
    log.close()


@pytest.fixture
async def engine(model):
    """`says`: what it says next; then "yes"."""
    says: list[Say] = []
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    engine = ScriptedEngine(tokenizer, lambda _: says.pop(0) if says else Say("yes"))
    engine.says = says
    async with engine:
        yield engine


@pytest.fixture
async def proxy(log, model, engine):
    async with running_proxy(log, model, EnginePool([EngineClient(engine.url)]), QUICK) as proxy:
        yield proxy


def post(proxy, dialect, body):
    url = f"{proxy.url}/x/e-1/{PATHS[dialect]}"
    return proxy.session.post(url, data=json.dumps(body), headers=proxy.headers())


async def ask(proxy, dialect, stream=False, text="u", **more):
    async with post(proxy, dialect, body_of(dialect, text, stream=stream, **more)) as reply:
        return reply.status, said(dialect, stream, await reply.read())


# ------------------------------------------------------------------------------------- streams
# spoon-core#179
@pytest.mark.parametrize("include_usage", [True, False, None])
async def test_case_19_usage_comes_in_a_last_chunk_where_it_was_asked_for(proxy, include_usage):
    options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    async with post(proxy, "chat", body_of("chat", "u", stream=True, **options)) as reply:
        blocks = (await reply.text()).strip().split("\n\n")
    data = [b.removeprefix("data: ") for b in blocks if b.startswith("data: ")]
    assert data.pop() == "[DONE]"
    chunks = [json.loads(d) for d in data]
    with_usage = [c for c in chunks if c.get("usage")]
    assert [c["choices"] for c in with_usage] == ([[]] if include_usage else [])
    assert with_usage == chunks[len(chunks) - len(with_usage) :]


# codex#31539
async def test_case_20_data_events_from_the_first_second_on_while_the_engine_is_silent(proxy, engine):
    assert Limits(context_tokens=1, new_tokens_max=1, temperature=1.0).keep_alive_s <= 15
    hold = asyncio.Event()
    engine.says.append(Say("yes", hold=hold))
    async with post(proxy, "responses", body_of("responses", "u", stream=True)) as reply:
        content = b""
        while content.count(b"\n\n") < 6:  # long before there is an answer
            content += await reply.content.readany()
        assert not hold.is_set()
        hold.set()
        content += await reply.content.read()
    assert all(b"\ndata: {" in block for block in content.strip().split(b"\n\n"))  # comments do not count
    events = said("responses", True, content).events
    assert events[0] == "response.created"
    assert events[1:6] == ["response.in_progress"] * 5


# codex#43140
@in_all_dialects
async def test_case_21_the_stream_ends_right_after_its_last_event(log, model, engine, dialect):
    """The next keep-alive is an hour away: what holds the stream open would hold this test."""
    async with running_proxy(log, model, engine.url, replace(QUICK, keep_alive_s=3600.0)) as proxy:
        body = body_of(dialect, "u", stream=True)
        async with asyncio.timeout(20), post(proxy, dialect, body) as reply:
            content = await reply.read()
    last = said(dialect, True, content).events[-1]
    assert last == {"chat": "done", "responses": "response.completed", "anthropic": "message_stop"}[dialect]


# freellmapi#805
@pytest.mark.parametrize("answer", ["text", "call"])
@in_all_dialects
async def test_case_22_reasoning_that_does_not_come_back_is_restored(proxy, engine, dialect, answer):
    spoken = "yes" if answer == "text" else call_text('{"command":  "ls"}')
    engine.says.append(Say("<think>\nlong thoughts\n</think>\n\n" + spoken))
    history = HISTORIES[dialect](spoken, answer)
    first, second = body_of(dialect, "u", **TOOLS_OF[dialect]), body_of(dialect, "u", **TOOLS_OF[dialect])
    async with post(proxy, dialect, first) as reply:
        assert "long thoughts" in await reply.text()
    second["input" if dialect == "responses" else "messages"] = history
    async with post(proxy, dialect, second) as reply:
        assert reply.status == 200
    one, two = engine.asked
    assert two.ids[: len(one.ids) + len(one.output_ids)] == one.ids + one.output_ids
    assert proxy.calls()[1].relation == "extends"


ID = "call_000000_00"
FUNCTION = TOOLS[0]["function"]
TOOLS_OF = {
    "chat": {"tools": TOOLS},
    "responses": {"tools": [{"type": "function", **FUNCTION}]},
    "anthropic": {"tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}]},
}


def chat_history(spoken, answer):
    call = {"id": ID, "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    if answer == "text":
        return [user("u"), {"role": "assistant", "content": spoken}, user("v")]
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [user("u"), message, result(message, "file.txt")]


def responses_history(spoken, answer):
    if answer == "text":
        said = {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": spoken}]}
        return [user("u"), said, user("v")]
    call = {"type": "function_call", "call_id": ID, "name": "bash", "arguments": '{"command":"ls"}'}
    return [user("u"), call, {"type": "function_call_output", "call_id": ID, "output": "file.txt"}]


def anthropic_history(spoken, answer):
    if answer == "text":
        said = {"role": "assistant", "content": [{"type": "text", "text": spoken}]}
        return [user("u"), said, user("v")]
    use = {"type": "tool_use", "id": ID, "name": "bash", "input": {"command": "ls"}}
    found = {"type": "tool_result", "tool_use_id": ID, "content": "file.txt"}
    return [user("u"), {"role": "assistant", "content": [use]}, {"role": "user", "content": [found]}]


HISTORIES = {"chat": chat_history, "responses": responses_history, "anthropic": anthropic_history}


# ----------------------------------------------------------------------------- weights, versions
# miles#2589
@in_all_dialects
@streamed_and_not
async def test_case_26_the_harness_never_sees_an_abort(proxy, engine, dialect, stream):
    engine.says += [Say("yes", fault="abort", partial=0), Say("yes", fault="abort", partial=1), Say("yes")]
    status, found = await ask(proxy, dialect, stream)
    assert (status, found.errors, len(found.answers)) == (200, [], 1)
    (call,) = proxy.calls().values()
    assert (call.finish_reason, call.delivered, call.retry_of) == ("stop", True, None)
    assert len(engine.asked) == 3


# AReaL#1569, rllm#622
async def test_case_27_spans_come_from_the_answer_and_the_version_at_dispatch_stays_apart(proxy, engine, log):
    log.append([GroupDispatched(time_us=1, group_id="g-1", task="t", size=1, policy_version=2, boundary=0)])
    engine.says.append(Say(ids=[5, 6, 7, 8], versions=[("3", 0, 1), ("4", 1, 4)]))
    await ask(proxy, "chat")
    (call,) = proxy.calls().values()
    assert call.spans == (VersionSpan(3, 0, 1), VersionSpan(4, 1, 4))
    assert not [name for name in ModelCalled.__struct_fields__ if "version" in name]
    assert read_events(log, "groups")[0].policy_version == 2


# slime#1514
@pytest.mark.parametrize("left", [[], ["weight_version"], ["weight_versions"]])
async def test_case_28_an_answer_without_a_version_is_of_an_unknown_one(proxy, engine, left):
    def change(answer):
        for name in ("weight_version", "weight_versions"):
            if name not in left:
                del answer["meta_info"][name]
        if left == ["weight_version"]:
            answer["meta_info"]["weight_version"] = "default"  # SGLang's own start value

    engine.says.append(Say("yes", change=change))
    status, found = await ask(proxy, "chat")
    assert (status, found.answers) == (200, ["yes"])
    (call,) = proxy.calls().values()
    assert call.spans == ((VersionSpan(0, 0, call.n_output),) if left == ["weight_versions"] else ())


# Gym#1557
async def test_case_29_an_engine_behind_an_api_key(log, model, engine):
    engine.key = "sk-engine"
    async with running_proxy(log, model, EngineClient(engine.url, api_key="sk-engine")) as proxy:
        assert (await ask(proxy, "chat"))[1].answers == ["yes"]
    async with running_proxy(log, model, EngineClient(engine.url, api_key="sk-other")) as proxy:
        status, found = await ask(proxy, "chat", text="v")
        assert (status, found.errors) == (502, ["engine_refused"])


# -------------------------------------------------------------- clients that time out and try again
# AReaL#1498, miles#955, verifiers#2164
async def test_case_30_who_asks_again_in_time_joins_the_call(log, model, engine):
    hold = asyncio.Event()
    engine.says.append(Say("slow", hold=hold))
    async with running_proxy(log, model, engine.url, replace(QUICK, rejoin_s=30.0)) as proxy:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ask(proxy, "anthropic")
        again = asyncio.create_task(ask(proxy, "anthropic", True))
        await asyncio.sleep(0.2)
        hold.set()
        assert (await again)[1].answers == ["slow"]
        assert [(c.delivered, c.retry_of) for c in proxy.calls().values()] == [(True, None)]
    assert len(engine.asked) == 1


async def test_case_30_a_call_that_was_given_up_is_no_target_and_the_next_is_its_retry(proxy, engine):
    engine.says.append(Say("the engine holds this", hold=asyncio.Event()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await ask(proxy, "chat")
    await until(proxy.calls)
    assert engine.asked[0].aborted
    status, found = await ask(proxy, "chat")
    assert (status, found.answers) == (200, ["yes"])
    calls = proxy.calls()
    assert [(c.delivered, c.retry_of) for c in calls.values()] == [(False, None), (True, 0)]
    assert calls[1].parent_call_id == 0  # of the prompt, not of what was sampled and lost
    assert calls[1].shared_len == len(engine.asked[0].ids)


async def test_case_30_a_reply_that_was_lost_is_answered_from_its_record(log, model, engine):
    """The client leaves when the reply begins; what was sampled for it is given to the same request again."""
    async with EngineClient(engine.url) as client:
        app = make_app(
            log=log,
            engine=client,
            engine_name="e",
            renderer=Renderer.load(model),
            secret=SECRET,
            limits=LIMITS,
        )
        headers = [(b"x-api-key", sign(SECRET, "g-1", "e-1").encode())]
        body = json.dumps(body_of("chat", "u")).encode()
        sent = Sent("POST", f"/x/e-1/{PATHS['chat']}", headers, (body,))
        engine.says += [Say("sampled once"), Say("never")]
        async with living(app):
            await send(app, replace(sent, leaves=True))
            got = await send(app, sent)
            assert said("chat", False, got.body).answers == ["sampled once"]
            closed = await send(app, Sent("POST", "/x/e-1/close", headers))
            assert json.loads(closed.body) == {"calls": 1}
    (call,) = read_events(log, "calls")
    assert (call.delivered, call.retry_of) == (True, None)
    assert read_events(log, "executions") == []
    assert len(engine.asked) == 1


# ---------------------------------------------------------------------------- log-probabilities
# vime#70
@in_all_dialects
async def test_case_31_a_missing_log_probability_is_refused_by_name(proxy, engine, dialect):
    def change(answer):
        answer["meta_info"]["output_token_logprobs"][1][0] = None

    engine.says.append(Say("yes", change=change))
    status, found = await ask(proxy, dialect)
    assert status == 502
    assert found.errors == ["api_error" if dialect == "anthropic" else "engine_refused"]
    assert proxy.calls() == {}
    engine.says.append(Say("yes", change=change))
    async with post(proxy, "chat", body_of("chat", "u")) as reply:
        assert "output token 1" in (await reply.json())["error"]["message"]


# cookbook#483
@pytest.mark.parametrize("wrong", [None, 7])
async def test_case_32_a_log_probability_of_no_or_another_token_is_refused(proxy, engine, wrong):
    def change(answer):
        answer["meta_info"]["output_token_logprobs"][1][1] = wrong

    engine.says.append(Say("yes", change=change))
    async with post(proxy, "chat", body_of("chat", "u")) as reply:
        assert reply.status == 502
        assert f"is of id {wrong}" in (await reply.json())["error"]["message"]
    assert proxy.calls() == {}
    assert (await ask(proxy, "chat"))[1].answers == ["yes"]
