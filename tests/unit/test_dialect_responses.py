"""Requests of the Responses protocol: what clients were seen to send (harness notes), folded."""

from __future__ import annotations

import json

import pytest

from ingest.proxy.dialects.responses import Responses
from ingest.proxy.neutral import Message, Rejected, Request, Sampling, ToolCall

DIALECT = Responses()
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}
EXEC = {
    "type": "function",
    "name": "exec_command",
    "description": "run",
    "strict": False,
    "parameters": SCHEMA,
}
SPAWN = {"type": "function", "name": "spawn_agent", "description": "start one", "parameters": SCHEMA}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [SPAWN]}
PATCH = {"type": "custom", "name": "apply_patch", "description": "edit files"}
ODD = '{\n  "yield_time_ms" : 5000.0,\n  "cmd":  "echo h\\u00e9llo \\/tmp"\n}'


def parse(*items, **body) -> Request:
    body = {"model": "m", "input": list(items) or "u"} | body
    return DIALECT.parse(json.dumps(body).encode(), {})


def folded(*items, **body) -> tuple[Message, ...]:
    return parse(*items, **body).messages


def refused(*items, **body) -> str:
    with pytest.raises(Rejected) as caught:
        parse(*items, **body)
    assert caught.value.status == 400
    return caught.value.sentence


def message(role, *texts, kind="input_text", **fields):
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "role": role, "content": content, **fields}


def said(text, **fields):
    return message("assistant", text, kind="output_text", **fields)


def thought(text, **fields):
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **fields}


def call(call_id, name="exec_command", arguments=ODD, **fields):
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id, **fields}


def output(call_id, value="ran", **fields):
    return {"type": "function_call_output", "call_id": call_id, "output": value, **fields}


USER = message("user", "go")


# ------------------------------------------------------------------------------- messages
def test_a_text_is_a_message_of_the_user_and_instructions_come_first():
    assert folded(instructions="be nice") == (Message("system", "be nice"), Message("user", "u"))
    assert folded(input="") == (Message("user", ""),)


def test_codex_begins_with_developer_messages():
    got = folded(message("developer", "You are", " a coding agent"), message("developer", "skills"), USER)
    assert got == (
        Message("system", "You are a coding agent"),
        Message("system", "skills"),
        Message("user", "go"),
    )


def test_messages_without_a_type_and_in_the_middle_stay_where_they_are():
    got = folded(
        {"role": "user", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "assistant"}
    )
    assert got == (Message("user", "a"), Message("system", "b"), Message("assistant", ""))


def test_a_refusal_is_what_the_model_said():
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert folded(USER, refusal)[-1] == Message("assistant", "no")


# ------------------------------------------------------------------- one reply, one message
def test_the_items_of_one_reply_are_one_message():
    """Codex: reasoning with `content: null`, item ids and call ids kept."""
    mine = {"content": None, "encrypted_content": "headrace:00000004", "id": "rs_00000004"}
    got = folded(
        USER,
        thought("First.\n\nkept? ", **mine),
        said("  Lead\n\n", id="msg_00000004", status="completed"),
        call("call_000004_00", id="fc_00000004_0", status="completed"),
        call("call_000004_01", id="fc_00000004_1", status="completed", arguments='{"cmd":"b"}'),
        output("call_000004_00", id="fco_01a22b11-ee72-73e0-bd7f-59e0ade10765"),
        output("call_000004_01"),
    )
    calls = (
        ToolCall("call_000004_00", "exec_command", ODD),
        ToolCall("call_000004_01", "exec_command", '{"cmd":"b"}'),
    )
    assert got[1:] == (
        Message("assistant", "  Lead\n\n", reasoning="First.\n\nkept? ", calls=calls),
        Message("tool", "ran", call_id="call_000004_00"),
        Message("tool", "ran", call_id="call_000004_01"),
    )


def test_items_without_our_marks_are_told_apart_by_their_order():
    got = folded(thought("a"), said("b"), call("x"), call("y"), said("c"), said("d"), thought("e"), call("z"))
    assert [(m.reasoning, m.text, [c.id for c in m.calls]) for m in got] == [
        ("a", "b", ["x", "y"]),
        (None, "c", []),
        (None, "d", []),
        ("e", "", ["z"]),
    ]


def test_replies_that_follow_each_other_are_told_apart_by_our_ids():
    """A text that was kept after a cut, and the next reply, which makes only a call."""
    got = folded(USER, said("kept", id="msg_00000001"), call("call_000002_00", id="fc_00000002_0"))
    assert [m.text for m in got[1:]] == ["kept", ""]


def test_calls_of_one_reply_that_come_with_their_outputs_between_are_one_message():
    a, b = "call_000001_00", "call_000001_01"
    got = folded(call(a), output(a), call(b), output(b))
    assert [m.role for m in got] == ["assistant", "tool", "tool"]
    assert [c.id for c in got[0].calls] == [a, b]


def test_calls_that_are_not_known_are_of_one_reply_each_behind_an_output():
    got = folded(call("a"), output("a"), call("b"), output("b"))
    assert [m.role for m in got] == ["assistant", "tool", "assistant", "tool"]


def test_a_history_may_end_with_the_assistant():
    """Codex after a stream that was cut."""
    assert folded(USER, said("half", id="msg_00000000"))[-1] == Message("assistant", "half")


def test_reasoning_is_read_from_content_too_and_encrypted_alone_says_nothing():
    content = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
    assert folded(content, said("a")) == (Message("assistant", "a", reasoning="t"),)
    foreign = {"type": "reasoning", "id": "rs_68af", "summary": [], "encrypted_content": "gAAAA"}
    assert folded(USER, foreign, message("user", "b")) == (Message("user", "go"), Message("user", "b"))
    ours = {"type": "reasoning", "summary": [], "encrypted_content": "headrace:00000001"}
    assert folded(USER, ours)[-1] == Message("assistant", "")


def test_outputs_are_text_or_lists_of_text():
    got = folded(output("a", [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]))
    assert got == (Message("tool", "xy", call_id="a"),)
    assert folded(output("a", None))[0].text == ""


# ---------------------------------------------------------------------------------- tools
def test_codex_tools_are_functions_and_hosted_ones_are_left_out():
    request = parse(tools=[EXEC, AGENTS, {"type": "web_search", "external_web_access": True}])
    assert request.tools == (
        {
            "type": "function",
            "function": {"name": "exec_command", "description": "run", "parameters": SCHEMA},
        },
        {
            "type": "function",
            "function": {
                "name": "multi_agent_v1__spawn_agent",
                "description": "Sub-agents.\n\nstart one",
                "parameters": SCHEMA,
            },
        },
    )


def test_a_call_in_a_namespace_has_the_function_s_name_whether_it_is_listed_or_not():
    """Codex's compaction sends `tools: []`."""
    item = call("x", name="spawn_agent", namespace="multi_agent_v1")
    for tools in ([AGENTS], []):
        assert folded(item, tools=tools)[0].calls[0].name == "multi_agent_v1__spawn_agent"


def test_names_that_are_put_together_are_unique():
    clash = EXEC | {"name": "multi_agent_v1__spawn_agent"}
    twice = AGENTS | {"tools": [SPAWN, SPAWN | {"name": "x"}]}
    request = parse(call("a", name="spawn_agent", namespace="multi_agent_v1"), tools=[twice, clash])
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["multi_agent_v1__spawn_agent_2", "multi_agent_v1__x", "multi_agent_v1__spawn_agent"]
    assert request.messages[0].calls[0].name == names[0]


def test_a_custom_tool_is_a_function_of_one_text():
    form = {"type": "grammar", "syntax": "lark", "definition": "start: patch"}
    request = parse(
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": 'say "é"\n'},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
        tools=[PATCH | {"format": form}],
    )
    parameters = request.tools[0]["function"]["parameters"]
    assert list(parameters["properties"]) == parameters["required"] == ["input"]
    assert "lark grammar:\nstart: patch" in parameters["properties"]["input"]["description"]
    (made,) = request.messages[0].calls
    assert made == ToolCall("a", "apply_patch", '{"input": "say \\"é\\"\\n"}')
    assert request.messages[1] == Message("tool", "done", call_id="a")


def test_a_call_of_the_local_shell_is_a_call():
    action = {"type": "exec", "command": ["ls"]}
    got = folded(
        {"type": "local_shell_call", "call_id": "a", "status": "completed", "action": action},
        {"type": "local_shell_call_output", "id": "a", "output": "x"},
    )
    assert got[0].calls == (ToolCall("a", "local_shell", json.dumps(action, separators=(",", ":"))),)
    assert got[1] == Message("tool", "x", call_id="a")


def test_without_tools_where_no_call_is_wanted():
    assert parse(tools=[EXEC], tool_choice="none").tools == ()
    assert len(parse(tools=[EXEC], tool_choice={"type": "auto"}).tools) == 1


@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ({}, "tools[0].type is None"),
        ({"type": "function"}, "tools[0].name is None"),
        ({"type": "function", "name": ""}, "tools[0].name is ''"),
        (EXEC | {"parameters": []}, "tools[0].parameters is []"),
        (EXEC | {"description": 1}, "tools[0].description is 1"),
        (PATCH | {"format": "x"}, "tools[0].format is 'x'"),
        (AGENTS | {"name": None}, "tools[0].name is None"),
        (AGENTS | {"tools": None}, "tools[0].tools is None"),
        (AGENTS | {"tools": [AGENTS]}, "tools[0].tools[0] is"),
        (AGENTS | {"tools": [SPAWN, {"type": "function"}]}, "tools[0].tools[1].name is None"),
    ],
)
def test_odd_tools_are_refused_by_name(tool, named):
    assert named in refused(tools=[tool])


# ------------------------------------------------------------------------------ the fields
def test_fields_of_sampling():
    request = parse(temperature=0.5, top_p=0.9, max_output_tokens=7, stream=True)
    assert request.sampling == Sampling(0.5, 0.9, -1)
    assert (request.new_tokens_max, request.stream, request.model) == (7, True, "m")
    assert parse().sampling == Sampling()
    assert parse().new_tokens_max is None


def test_what_does_not_matter_is_let_pass():
    plain = parse(tools=[EXEC])
    request = parse(
        tools=[EXEC],
        store=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        client_metadata={"a": "b"},
        reasoning={"effort": "high", "summary": "auto"},
        parallel_tool_calls=False,
        tool_choice="auto",
        truncation="auto",
        service_tier="auto",
        text={"format": {"type": "text"}, "verbosity": "low"},
    )
    assert request.digest("main", b"") == plain.digest("main", b"")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input": []}, "input is empty"),
        ({"input": None}, "input is empty"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported: nothing is stored"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        ({"background": True}, "background"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "logprobs"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format is of type 'json_schema'"),
        ({"tool_choice": "required"}, "tool_choice is 'required'"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, "input[0] refers to item 'rs_1'"),
        ({"input": [{"type": "computer_call", "call_id": "x"}]}, "input[0] is of type 'computer_call'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0]: role 'tool'"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0]: role None"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0] has no call_id"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0] has no name"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0] has no call_id"),
        ({"input": [output("a", {"x": 1})]}, "input[0].output"),
        (
            {"input": [message("user", "x", kind="input_image")]},
            "input[0].content[0] is of type 'input_image'",
        ),
        ({"input": [output("a", [{"type": "hologram"}])]}, "input[0].output[0] is of type 'hologram'"),
        ({"input": 7}, "not a responses request"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, named):
    assert named in refused(**body)
