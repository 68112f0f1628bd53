"""Anthropic Messages over real HTTP, sent as Claude Code sends them: the prefix holds, token for token."""

from __future__ import annotations

import json

import pytest

from ingest.identity import sign
from tests.support.anthropic_events import message_of
from tests.support.driven_execution import call_text
from tests.support.running_proxy import SECRET
from tests.support.scripted_engine import Say

ODD = '{\n  "n" : 1.50,\n  "command":  "echo h\\u00e9llo \\/tmp", "big":12345678901234567890\n}'
HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": sign(SECRET, "g-1", "e-1")}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def text(value, **fields):
    return {"type": "text", "text": value, **fields}


def tool(name, **fields):
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    return {"name": name, "description": name, "input_schema": schema, **fields}


class Client:
    """Claude Code, as it was seen to treat its history."""

    def __init__(self, proxy, engine):
        self.proxy, self.engine = proxy, engine
        self.tools = [tool("bash")]
        self.messages = []
        self.asked = 0

    async def post(self, path="messages", **body):
        url = f"{self.proxy.url}/x/e-1/v1/{path}?beta=true"
        async with self.proxy.session.post(url, data=json.dumps(body), headers=HEADERS) as reply:
            return reply.status, await reply.read()

    async def ask(self, say, *content):
        """Send the history and a user message; the policy says `say`, kept as this client keeps it."""
        self.asked += 1
        self.engine.script = lambda _: Say(say)
        billing = text(f"x-anthropic-billing-header: cc_version=2.1.332.b37; cch={self.asked:05x};")
        status, stream = await self.post(
            model="m",
            max_tokens=1000,
            stream=True,
            system=[billing, text("You are Claude Code.", **EPHEMERAL)],
            tools=self.tools,
            messages=[*self.messages, {"role": "user", "content": list(content)}],
        )
        assert status == 200
        message = message_of(stream)
        self.messages.append({"role": "user", "content": list(content)})
        self.messages.append({"role": "assistant", "content": [self._kept(b) for b in message["content"]]})
        return message

    @staticmethod
    def _kept(block):
        if block["type"] != "tool_use":
            return block
        written = block.pop("partial_json")
        try:
            parsed = json.loads(written, parse_int=lambda n: int(float(n)))  # a double of JavaScript
        except ValueError:
            return block | {"input": {"__unparsedToolInput": {"raw": written, "len": len(written)}}}
        return block | {"input": dict(sorted(parsed.items()))}

    def continued(self):
        """The last prompt begins with the one before it and what was sampled for that, id for id."""
        before, last = self.engine.asked[-2:]
        known = before.ids + before.output_ids
        return last.ids[: len(known)] == known


@pytest.fixture
def client(proxy, engine):
    return Client(proxy, engine)


def result(message, k, content, **fields):
    uses = [b for b in message["content"] if b["type"] == "tool_use"]
    return {"tool_use_id": uses[k]["id"], "type": "tool_result", "content": content, **fields}


async def test_cases_13_and_18_a_nonce_rewritten_arguments_and_results_in_another_order(client):
    said = "<think>\nFirst.\n</think>\n\nI look.\n" + call_text(ODD) + "\n" + call_text('{"command": "two"}')
    message = await client.ask(said, text("do it"))
    assert [b["type"] for b in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert message["stop_reason"] == "tool_use"
    await client.ask("one more", result(message, 1, "second"), result(message, 0, "first"))
    assert client.continued()
    assert client.engine.asked[-1].prompt.index("second") < client.engine.asked[-1].prompt.index("first")
    await client.ask("done", text("and?"))
    assert client.continued()


async def test_case_12_a_mid_list_system_message_flips(client):
    client.messages = [
        {"role": "user", "content": "u"},
        {"role": "system", "content": [text("# Environment", **EPHEMERAL)]},
        {"role": "assistant", "content": "a"},
    ]
    await client.ask("first", text("go"))
    client.messages[1]["content"] = "# Environment"
    client.messages[0]["content"] = [text("u")]
    await client.ask("second", text("on"))
    assert client.continued()


async def test_case_14_tools_grow_in_the_middle(client):
    client.tools = [tool("bash"), tool("ToolSearch"), tool("last")]
    message = await client.ask(call_text('{"query": "select:WebFetch"}', "ToolSearch"), text("u"))
    client.tools.insert(1, tool("WebFetch", defer_loading=True))
    found = result(message, 0, [{"type": "tool_reference", "tool_name": "WebFetch"}])
    message = await client.ask(call_text('{"command": "http://u"}', "WebFetch"), found, text("Tool loaded."))
    assert client.continued()
    assert '"name": "WebFetch"' in client.engine.asked[-1].prompt
    assert message["content"][0]["name"] == "WebFetch"
    await client.ask("done", result(message, 0, "page"))
    assert client.continued()


async def test_malformed_arguments_come_back_as_the_marker_and_are_the_sampled_ids(client):
    message = await client.ask(call_text('{"command": "echo bad", }'), text("u"))
    await client.ask("sorry", result(message, 0, "<tool_use_error>", is_error=True))
    assert client.continued()
    assert client.proxy.calls()[1].difference == ""


async def test_counting_is_what_the_engine_is_asked_and_records_nothing(client):
    body = {"model": "m", "messages": [{"role": "user", "content": "u"}], "tools": client.tools}
    status, counted = await client.post("messages/count_tokens", **body)
    assert status == 200
    assert client.proxy.calls() == {}
    await client.post(**body, max_tokens=5)
    assert json.loads(counted) == {"input_tokens": len(client.engine.asked[-1].ids)}


async def test_usage_is_the_engines(client):
    message = await client.ask("yes", text("u"))
    (asked,) = client.engine.asked
    cached = len(asked.ids) // 2
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (len(asked.ids) - cached, cached)
    assert usage["output_tokens"] == len(asked.output_ids)


async def test_a_prompt_that_is_too_long_names_both_numbers(client):
    status, body = await client.post(model="m", messages=[{"role": "user", "content": "long " * 9000}])
    assert status == 400
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")
    assert error["message"].endswith(" tokens > 4096 maximum")


async def test_refusals_and_models_are_in_its_shapes(client):
    status, body = await client.post(messages=[])
    assert (status, json.loads(body)["type"]) == (400, "error")
    url = f"{client.proxy.url}/x/e-1/v1/models"
    async with client.proxy.session.get(url, headers=HEADERS) as reply:
        listed = await reply.json()
    assert [m["type"] for m in listed["data"]] == ["model"]
    async with client.proxy.session.get(url, headers=HEADERS | {"x-api-key": "wrong"}) as reply:
        assert (reply.status, (await reply.json())["error"]["type"]) == (401, "authentication_error")
