"""Chat Completions: what clients were seen to send (harness notes), what goes back, and any body at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.proxy.dialects.chat import Chat
from ingest.proxy.neutral import Answer, Message, Rejected, Request, Sampling, ToolCall
from ingest.proxy.rendering import Renderer, RenderingError
from tests.support.odd_bodies import JSON, odd_bodies
from tests.support.tiny_model import TEMPLATE, make_tokenizer

DIALECT = Chat()
TOKENIZER = make_tokenizer()
RENDERER = Renderer(TOKENIZER, TEMPLATE, {}, [TOKENIZER.token_to_id("<|im_end|>")])
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": SCHEMA}}
USER = {"role": "user", "content": "u"}
ODD = '{\n  "z" : 5.0,\n  "command":  "echo h\\u00e9llo \\/tmp", "big":12345678901234567890\n}'


def parse(*messages, **body) -> Request:
    return DIALECT.parse(json.dumps({"model": "m", "messages": list(messages) or [USER]} | body).encode(), {})


def folded(*messages) -> tuple[Message, ...]:
    return parse(*messages).messages


def refused(*messages, **body) -> str:
    with pytest.raises(Rejected) as caught:
        parse(*messages, **body)
    assert caught.value.status == 400
    return caught.value.sentence


def called(*calls, **fields):
    made = [
        {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        for call_id, arguments in calls
    ]
    return {"role": "assistant", "tool_calls": made, **fields}


def answer(text="", reasoning=None, calls=(), finish="stop") -> Answer:
    return Answer(
        call_id=7,
        text=text,
        reasoning=reasoning,
        calls=tuple(ToolCall(f"call_000007_{k:02d}", "bash", a) for k, a in enumerate(calls)),
        finish="tool_calls" if calls else finish,
        prompt_tokens=30,
        completion_tokens=5,
        cached_tokens=20,
        created_us=1_700_000_000_000_000,
    )


# ------------------------------------------------------------------------------- messages
def test_roles():
    """pi sends its system prompt as the developer's."""
    roles = ("system", "developer", "user", "assistant", "tool")
    got = folded(*({"role": role, "content": role} for role in roles))
    assert [m.role for m in got] == ["system", "system", "user", "assistant", "tool"]


def test_case_11_no_content_is_empty_text():
    for content in ({"content": None}, {"content": ""}, {"content": []}, {}):
        assert folded(USER, called(("a", ODD), **content))[1].text == ""


def test_content_lists_are_text():
    """Qwen Code, OpenHands."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": None}, {"type": "text", "text": "b"}]
    assert folded({"role": "user", "content": parts})[0].text == "ab"


def test_a_refusal_is_what_the_model_said():
    part = {"type": "refusal", "refusal": "no"}
    assert folded(USER, {"role": "assistant", "content": [part]})[1].text == "no"
    assert folded(USER, {"role": "assistant", "content": None, "refusal": "no"})[1].text == "no"


def test_reasoning_comes_back_under_either_name_or_not_at_all():
    for name in ("reasoning_content", "reasoning"):
        assert folded(USER, {"role": "assistant", "content": "a", name: "t "})[1].reasoning == "t "
    for nothing in (None, {"effort": "low"}, []):
        assert folded(USER, {"role": "assistant", "content": "a", "reasoning": nothing})[1].reasoning is None
    assert folded({"role": "user", "content": "a", "reasoning": "t"})[0].reasoning is None


def test_arguments_are_kept_byte_for_byte_or_put_as_text():
    calls = folded(USER, called(("a", ODD), ("b", {"x": 1}), ("c", None), (None, '{"x": 1, }')))[1].calls
    assert [(c.id, c.arguments) for c in calls] == [
        ("a", ODD),
        ("b", '{"x":1}'),
        ("c", ""),
        ("", '{"x": 1, }'),
    ]


def test_what_litellm_dumps_of_its_own_message_is_read():
    dumped = called(("a", "{}"), content=None, function_call=None, provider_specific_fields={"refusal": None})
    result = {"role": "tool", "tool_call_id": "a", "name": "bash", "content": "ran"}
    assert folded(USER, dumped, result)[1:] == (
        Message("assistant", "", calls=(ToolCall("a", "bash", "{}"),)),
        Message("tool", "ran", call_id="a", name="bash"),
    )


# ------------------------------------------------------------------------------ the fields
def test_tools_go_on_as_they_came_and_none_is_none():
    assert parse(tools=[BASH]).tools == parse(tools=[BASH], tool_choice="auto").tools == (BASH,)
    assert parse(tools=[BASH], tool_choice="none").tools == ()
    assert parse(tools=[], tool_choice="none").tools == parse(tools=None).tools == ()


def test_sampling_and_limits():
    request = parse(temperature=0.5, top_p=0.9, top_k=20, max_tokens=9, max_completion_tokens=7, n=1)
    assert (request.sampling, request.new_tokens_max) == (Sampling(0.5, 0.9, 20), 7)
    assert parse(max_tokens=9).new_tokens_max == 9
    assert parse(stream=False).stream is parse(stream=None).stream is False


def test_what_does_not_matter_is_let_pass():
    request = parse(
        tools=[BASH],
        parallel_tool_calls=False,
        store=False,
        reasoning_effort="high",
        prompt_cache_key="k",
        seed=1,
        stop=[],
        logit_bias={},
        frequency_penalty=0,
        repetition_penalty=1.0,
        modalities=["text"],
        response_format={"type": "text"},
        functions=[],
    )
    assert request == parse(tools=[BASH])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": None}, "not a chat completion request"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0]: role 'function'"),
        ({"messages": [USER, called() | {"function_call": {"name": "f"}}]}, "messages[1]: function_call"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0] is of type 'image_url'",
        ),
        ({"n": 2}, "n is 2"),
        ({"stop": ["x"]}, "stop strings"),
        ({"frequency_penalty": 0.1}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"min_p": 0.1}, "min_p"),
        ({"logprobs": True}, "logprobs"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities is ['text', 'audio']"),
        ({"tool_choice": "required", "tools": [BASH]}, "tool_choice is 'required'"),
        ({"tool_choice": {"type": "function", "function": {"name": "bash"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_completion_tokens": -1}, "max_completion_tokens is -1"),
        ({"top_k": 0}, "top_k is 0"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0] is of type 'custom'"),
        ({"tools": [BASH, {"type": "function"}]}, "tools[1].function is None"),
        ({"tools": [{"type": "function", "function": {"name": 7}}]}, "tools[0].function.name is 7"),
        ({"tools": [{"function": {"name": "x", "parameters": "y"}}]}, "tools[0].function.parameters is 'y'"),
        ({"tools": ["bash"]}, "not a chat completion request"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, named):
    assert named in refused(**body)


# -------------------------------------------------------------------------- what goes back
def chunks_of(stream: bytes):
    """The chunks; what is a comment, or is no data, fails."""
    *events, done = [block for block in stream.decode().split("\n\n") if block and not block.startswith(":")]
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def streamed(said: Answer, **body):
    reply = DIALECT.reply(parse(stream=True, **body))
    begun = reply.begin(30) + reply.alive(10.0)
    assert all(block.startswith(b":") for block in begun.split(b"\n\n") if block)
    return chunks_of(begun + reply.finish(said))


def test_case_19_usage_is_the_last_chunk_where_it_is_asked_for():
    with_usage = streamed(answer("hi"), stream_options={"include_usage": True})
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 5,
        "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 20},
    }
    assert [chunk["usage"] for chunk in with_usage[:-1]] == [None, None]
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        assert all(chunk["choices"] and "usage" not in chunk for chunk in streamed(answer("hi"), **options))


def test_a_stream_says_what_the_whole_reply_says():
    said = answer("  hi\n", "so ", [ODD, "{}"])
    whole = json.loads(DIALECT.answer(parse(), said))
    first, last = streamed(said)
    delta = first["choices"][0]["delta"]
    assert [call.pop("index") for call in delta["tool_calls"]] == [0, 1]
    assert delta == whole["choices"][0]["message"]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert {first["id"], last["id"]} == {whole["id"]} == {"chatcmpl-00000007"}


def test_case_23_the_token_limit_is_length():
    assert json.loads(DIALECT.answer(parse(), answer("cut", finish="length")))["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "cut"}, "finish_reason": "length"}
    ]


SAID = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None)
@given(
    SAID, st.none() | SAID.filter(bool), st.lists(st.sampled_from([ODD, "{}", '{"a": 1, }', ""]), max_size=3)
)
def test_what_was_said_comes_back_as_it_was(text, reasoning, calls):
    said = answer(text, reasoning, calls)
    message = json.loads(DIALECT.answer(parse(), said))["choices"][0]["message"]
    assert folded(USER, message)[1] == Message("assistant", text, reasoning=reasoning, calls=said.calls)


def test_a_prompt_that_is_too_long_is_told_with_both_numbers():
    rejected = Rejected(400, "context_length_exceeded", "too long", (5000, 4096))
    error = json.loads(DIALECT.error(rejected))["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    )
    assert "maximum context length is 4096 tokens" in error["message"]
    assert "resulted in 5000 tokens" in error["message"]
    assert DIALECT.reply(parse()).fail(rejected) == b"data: " + DIALECT.error(rejected) + b"\n\n"


def test_models_as_openai_lists_them():
    card = {"id": "m", "object": "model", "created": 0, "owned_by": "headrace"}
    assert json.loads(DIALECT.model("m")) == card
    assert json.loads(DIALECT.models(["m"])) == {"object": "list", "data": [card]}


# --------------------------------------------------------------------------------- any body
GOOD = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        called(("a", ODD), content=None, reasoning_content="t"),
        {"role": "tool", "tool_call_id": "a", "name": "bash", "content": "ran"},
    ],
    "tools": [BASH],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1.0,
    "max_tokens": 5,
    "n": 1,
    "stop": [],
    "response_format": {"type": "text"},
    "chat_template_kwargs": {"enable_thinking": False},
}
WORDS = st.sampled_from(
    ["user", "assistant", "tool", "function", "image_url", "none", "required", "a", "", 2**70]
)


@settings(deadline=None, max_examples=300)
@given(odd_bodies(GOOD, WORDS) | JSON)
def test_any_json_is_a_request_or_a_400(body):
    """And what is served can be told apart and rendered, or the template says why not."""
    try:
        request = DIALECT.parse(json.dumps(body).encode(), {})
        assert request.digest("main", b"")
        RENDERER.render(request.messages, request.tools, request.options, now_us=0)
    except RenderingError:
        return
    except Rejected as error:
        rejected = error
    else:
        assert DIALECT.answer(request, answer("x", calls=["{}"]))
        return
    assert rejected.status == 400
    assert DIALECT.error(rejected)


DEEP = b'{"messages": ' + b"[" * 100_000


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"7", DEEP, b"9" * 5000])
def test_what_is_no_request_is_a_400(body):
    with pytest.raises(Rejected) as caught:
        DIALECT.parse(body, {})
    assert caught.value.status == 400


def test_an_image_that_a_tool_brought_back_ends_no_run():
    parts = [{"type": "text", "text": "a plot: "}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    body = {"messages": [{"role": "tool", "tool_call_id": "t", "content": parts}]}
    (message,) = Chat().parse(json.dumps(body).encode(), {}).messages
    assert message.text == "a plot: [image: not shown, this model reads text only]"
