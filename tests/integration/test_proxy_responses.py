"""OpenAI Responses over real HTTP, sent as Codex sends it: the prefix holds, token for token."""

from __future__ import annotations

import asyncio
import json

import pytest

from ingest.identity import sign
from tests.support.driven_execution import call_text
from tests.support.responses_events import events_of, response_of
from tests.support.running_proxy import SECRET
from tests.support.scripted_engine import Say

ODD = '{\n  "n" : 1.50,\n  "cmd":  "echo h\\u00e9llo \\/tmp", "big":12345678901234567890\n}'
HEADERS = {"Authorization": f"Bearer {sign(SECRET, 'g-1', 'e-1')}"}
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}
SPAWN = {"type": "function", "name": "spawn_agent", "description": "start", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "name": "exec_command", "description": "run", "strict": False, "parameters": SCHEMA},
    {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [SPAWN]},
    {"type": "custom", "name": "apply_patch", "description": "edit"},
    {"type": "web_search"},
]


def user(text):
    return message("user", text)


def message(role, text):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


class Client:
    """Codex, as it was seen to treat its history."""

    def __init__(self, proxy, engine):
        self.proxy, self.engine = proxy, engine
        self.items = [message("developer", "You are a coding agent."), message("developer", "skills")]

    async def post(self, **body):
        url = f"{self.proxy.url}/x/e-1/v1/responses"
        async with self.proxy.session.post(url, data=json.dumps(body), headers=HEADERS) as reply:
            return reply.status, await reply.read()

    async def ask(self, say, *items, tools=TOOLS):
        """Send the history and new items; the policy says `say`, kept as this client keeps it."""
        self.engine.script = lambda _: say if isinstance(say, Say) else Say(say)
        self.items += items
        body = {"model": "m", "stream": True, "input": self.items, "tools": tools, "tool_choice": "auto"}
        more = {"parallel_tool_calls": True, "store": False, "include": ["reasoning.encrypted_content"]}
        status, stream = await self.post(**body, **more)
        assert status == 200
        output = response_of(stream)["output"]
        self.items += [i | {"content": None} if i["type"] == "reasoning" else i for i in output]
        return output

    def continued(self):
        """The last prompt begins with the one before it and what was sampled for that, id for id."""
        before, last = self.engine.asked[-2:]
        known = before.ids + before.output_ids
        return last.ids[: len(known)] == known


@pytest.fixture
def client(proxy, engine):
    return Client(proxy, engine)


def result(item, text="ran"):
    return {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": text}


async def test_a_conversation_with_every_kind_of_call_is_one_chain(client):
    said = "<think>\nFirst.\n</think>\n\nI look.\n" + call_text(ODD, "exec_command") + "\n"
    output = await client.ask(said + call_text('{"cmd" : "two"}', "exec_command"), user("do it"))
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[2]["arguments"] == ODD
    spawn = call_text('{"cmd":"sub"}', "multi_agent_v1__spawn_agent")
    (called,) = await client.ask(spawn, result(output[2]), result(output[3]))
    assert client.continued()
    assert (called["namespace"], called["name"]) == ("multi_agent_v1", "spawn_agent")
    (patch,) = await client.ask(call_text('{ "input":"*** Begin" }', "apply_patch"), result(called))
    assert client.continued()
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin")
    await client.ask("done", result(patch))
    assert client.continued()
    await client.ask("yes", user("and?"))
    assert client.continued()
    calls = client.proxy.calls()
    assert [calls[n].relation for n in range(1, 5)] == ["extends"] * 4
    assert "web_search" not in client.engine.asked[0].prompt


@pytest.mark.parametrize("said", ["", "<think>\nonly this\n</think>\n\n"])
async def test_a_reply_of_nothing_comes_back_and_is_continued(client, said):
    await client.ask(said, user("u"))
    await client.ask("yes", user("more"))
    assert client.continued()


async def test_malformed_arguments_are_the_harness_s_to_answer(client):
    (called,) = await client.ask(call_text('{"cmd": "echo bad", }', "exec_command"), user("u"))
    assert called["arguments"] == '{"cmd": "echo bad", }'
    await client.ask("sorry", result(called, "trailing comma at line 1 column 21"))
    assert client.continued()


async def test_a_history_that_ends_with_the_assistant_is_answered(client):
    client.items += [user("u"), {"type": "message", "role": "assistant", "content": "half an ans"}]
    output = await client.ask("the rest")
    assert output[0]["content"][0]["text"] == "the rest"


async def test_case_20_data_events_hold_the_stream(client):
    hold = asyncio.Event()
    asyncio.get_running_loop().call_later(0.4, hold.set)
    client.engine.script = lambda _: Say("late", hold=hold)
    status, stream = await client.post(model="m", input="u", stream=True)
    assert status == 200
    kinds = [event["type"] for event in events_of(stream)]
    assert kinds.count("response.in_progress") >= 3
    assert kinds[-1] == "response.completed"


async def test_the_token_limit_is_incomplete(client):
    client.engine.script = lambda _: Say("a long answer that goes on")
    status, body = await client.post(model="m", input="u", max_output_tokens=3)
    said = json.loads(body)
    assert (status, said["status"], said["usage"]["output_tokens"]) == (200, "incomplete", 3)
    assert said["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_usage_is_the_engine_s(client):
    _, body = await client.post(model="m", input="u")
    (asked,) = client.engine.asked
    usage = json.loads(body)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(asked.ids), len(asked.output_ids))
    assert usage["input_tokens_details"]["cached_tokens"] == len(asked.ids) // 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_names_both_numbers(client, stream):
    status, body = await client.post(model="m", input="long " * 9000, stream=stream)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "maximum context length is 4096 tokens" in error["message"]
