"""Anthropic's dialect against what comes: its own answers as clients send them back, and any body at all."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.proxy.dialects.anthropic import Anthropic
from ingest.proxy.neutral import Answer, Rejected, ToolCall
from tests.support.anthropic_events import message_of

DIALECT = Anthropic()
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
REQUEST = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "u"}]}
RESULT = {"type": "tool_result", "tool_use_id": "call_000007_00", "content": "r"}


def parse(body):
    return DIALECT.parse(json.dumps(body).encode(), {})


# ------------------------------------------------------------------------------ round trips
ODD = '{\n  "z" : 5.0,\n  "command":  "echo h\\u00e9llo \\ud83d\\ude00 \\/tmp", "big":12345678901234567890\n}'


def claude_code(content):
    """Numbers become doubles, keys are ordered, empty texts stay; ids, texts and signatures are kept."""

    def double(value):
        if isinstance(value, dict):
            return {k: double(value[k]) for k in sorted(value)}
        whole = isinstance(value, float) and value.is_integer()
        return int(value) if whole else int(float(value)) if isinstance(value, int) else value

    return [
        {"type": "tool_use", "id": b["id"], "name": b["name"], "input": double(b["input"]), **EPHEMERAL}
        if b["type"] == "tool_use"
        else b
        for b in content
    ]


def langchain(content):
    """Empty texts vanish, keys of blocks are ordered its own way, inputs are Python's."""
    return [dict(sorted(b.items(), reverse=True)) for b in content if b.get("text") != ""]


def dropping(content):
    """A client that keeps no reasoning."""
    return [b for b in content if b["type"] != "thinking"]


@pytest.mark.parametrize("client", [claude_code, langchain, dropping, copy.deepcopy])
@pytest.mark.parametrize("waits", [[], [240.0]])
@pytest.mark.parametrize("stream", [True, False])
def test_what_was_answered_comes_back_as_the_same_message(client, waits, stream):
    calls = (ToolCall("call_000007_00", "bash", ODD), ToolCall("call_000007_01", "bash", "{}"))
    numbers = {"prompt_tokens": 9, "completion_tokens": 7, "cached_tokens": 0, "created_us": 0}
    answer = Answer(
        call_id=7, text="  Leading\n\n", reasoning="So. ", calls=calls, finish="tool_calls", **numbers
    )
    request = parse(REQUEST | {"stream": stream})
    if stream:
        reply = DIALECT.reply(request)
        parts = [reply.begin(9), *map(reply.alive, waits), reply.finish(answer)]
        content = message_of(b"".join(parts))["content"]
        for block in content:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block.pop("partial_json"))
    else:
        content = json.loads(DIALECT.answer(request, answer))["content"]
    kept = {"role": "assistant", "content": client(content)}
    asked = REQUEST | {"messages": [*REQUEST["messages"], kept, {"role": "user", "content": [RESULT]}]}
    back = parse(asked).messages[1]
    assert back.text == answer.text
    assert back.reasoning == (None if client is dropping else answer.reasoning)
    assert [(c.id, c.name) for c in back.calls] == [(c.id, c.name) for c in answer.calls]
    assert json.loads(back.calls[0].arguments)["command"] == json.loads(ODD)["command"]


# ------------------------------------------------------------------------------- any body
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
TYPES = st.sampled_from(
    ["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference", "search_result",
     "tool_addition", "tool_removal", "tool_definition",
     "image", "server_tool_use", "web_search_tool_result", "custom", "bash_20250124", "tool_search_tool_x"]
)  # fmt: skip
FIELDS = st.sampled_from(
    ["type", "text", "thinking", "id", "name", "input", "content", "is_error", "tool_use_id", "tool_name",
     "tool", "definition",
     "title", "source", "input_schema", "description", "defer_loading", "role", "format"]
)  # fmt: skip
BLOCKS = st.recursive(
    st.dictionaries(FIELDS, TYPES | JSON, max_size=4).flatmap(lambda d: TYPES.map(lambda t: {"type": t} | d)),
    lambda inner: st.builds(lambda t, c: {"type": t, "content": c}, TYPES, st.lists(inner, max_size=3)),
    max_leaves=4,
)
CONTENTS = st.text(max_size=8) | st.lists(BLOCKS, max_size=3) | JSON
ROLES = st.sampled_from(["user", "assistant", "system", "tool"]) | JSON
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENTS}), max_size=3) | JSON},
    optional={
        "system": CONTENTS,
        "tools": st.lists(BLOCKS, max_size=3) | JSON,
        "tool_choice": BLOCKS | JSON,
        "thinking": BLOCKS | JSON,
        "output_config": BLOCKS | JSON,
        "max_tokens": SCALARS,
        "temperature": SCALARS,
        "top_k": SCALARS,
        "stream": SCALARS,
        "stop_sequences": JSON,
    },
)


def served(body: bytes) -> None:
    """A request or a refusal (400), nothing else; and what is served can be recorded."""
    try:
        request = DIALECT.parse(body, {})
    except Rejected as error:
        rejected = error
    else:
        assert request.digest("main", b"")
        assert all(isinstance(t, str) for m in request.messages for t in (m.text, m.call_id, m.role))
        return
    assert rejected.status == 400
    assert DIALECT.error(rejected)


@settings(deadline=None)
@given(BODIES | JSON)
def test_any_json_is_served_or_refused(body):
    served(json.dumps(body).encode())


@settings(deadline=None)
@given(BODIES, st.data())
def test_any_bytes_are_served_or_refused(body, data):
    whole = bytearray(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    served(bytes(whole))
