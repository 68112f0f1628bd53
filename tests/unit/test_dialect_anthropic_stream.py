"""Anthropic's replies: streamed and whole, kept alive, failed; read by a strict client."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.proxy.dialects.anthropic import Anthropic
from ingest.proxy.dialects.anthropic_blocks import as_arguments, as_input
from ingest.proxy.dialects.anthropic_stream import OPEN_AFTER_S, PING, WHOLE_INPUT, signature
from ingest.proxy.neutral import Answer, Message, Rejected, Request, ToolCall
from tests.support.anthropic_events import events_of, message_of

ODD = '{\n  "z" : 5.0,\n  "command":  "echo h\\u00e9llo \\ud83d\\ude00 \\/tmp", "big":12345678901234567890\n}'
BROKEN = '{"command": "echo bad", }'
DIALECT = Anthropic()


def request(**fields):
    return Request(dialect="anthropic", messages=(Message("user", "u"),), model="m", **fields)


def said(text="", reasoning=None, calls=(), finish="stop", **fields):
    numbers = {"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 60, "created_us": 0}
    calls = tuple(ToolCall(f"call_000003_{k:02d}", "bash", a) for k, a in enumerate(calls))
    return Answer(call_id=3, text=text, reasoning=reasoning, calls=calls, finish=finish, **(numbers | fields))


def streamed(answer, waits=(), **fields):
    reply = DIALECT.reply(request(stream=True, **fields))
    return b"".join([reply.begin(answer.prompt_tokens), *map(reply.alive, waits), reply.finish(answer)])


def kinds(stream):
    return [e["type"] for e in events_of(stream)]


def test_a_reply_begins_at_once_with_the_message_and_a_ping():
    stream = DIALECT.reply(request()).begin(100)
    start, ping = events_of(stream)
    assert start["message"].pop("id").startswith("msg_")
    assert start["message"] == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 100,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }
    assert ping == {"type": "ping"}


def test_two_replies_have_different_ids():
    """Claude Code joins the blocks of messages with the same id."""
    first, second = (message_of(streamed(said("a")))["id"] for _ in range(2))
    assert first != second


def test_thinking_text_and_calls_come_in_order_and_as_they_were_sampled():
    answer = said("  Leading\n\n", "First.\n\nSpaces  kept? ", [ODD, BROKEN], "tool_calls")
    message = message_of(streamed(answer))
    assert message["content"] == [
        {
            "type": "thinking",
            "thinking": "First.\n\nSpaces  kept? ",
            "signature": signature("First.\n\nSpaces  kept? "),
        },
        {"type": "text", "text": "  Leading\n\n"},
        {"type": "tool_use", "id": "call_000003_00", "name": "bash", "input": {}, "partial_json": ODD},
        {"type": "tool_use", "id": "call_000003_01", "name": "bash", "input": {}, "partial_json": BROKEN},
    ]
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use")]
)
def test_the_finish_in_its_words(finish, reason):
    answer = said("x", finish=finish)
    assert message_of(streamed(answer))["stop_reason"] == reason
    assert json.loads(DIALECT.answer(request(), answer))["stop_reason"] == reason


def test_usage_counts_cached_tokens_apart():
    right = {
        "input_tokens": 40,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 60,
        "output_tokens": 7,
    }
    assert message_of(streamed(said("x")))["usage"] == right
    assert json.loads(DIALECT.answer(request(), said("x")))["usage"] == right


def test_a_prompt_that_was_cached_whole_has_one_token_that_was_not():
    """0 would leave Claude Code with message_start's number, and the prompt counted twice."""
    usage = message_of(streamed(said("x", cached_tokens=100)))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (1, 99)


def test_pings_until_four_minutes_then_empty_texts_in_an_open_block():
    reply = DIALECT.reply(request())
    reply.begin(100)
    assert reply.alive(10) == reply.alive(OPEN_AFTER_S - 1) == PING
    assert kinds(reply.alive(OPEN_AFTER_S)) == ["content_block_start", "content_block_delta"]
    assert events_of(reply.alive(OPEN_AFTER_S + 10)) == [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}
    ]


def test_an_answer_that_thinks_first_goes_on_behind_the_block_that_was_held_open():
    answer = said("done", "why", [ODD], "tool_calls")
    content = message_of(streamed(answer, [10, 240, 250]))["content"]
    assert content[0] == {"type": "text", "text": ""}
    assert content[1:] == message_of(streamed(answer))["content"]


def test_an_answer_that_begins_with_text_goes_on_in_the_open_block():
    """So `message.content[0].text`, which users of the SDK write, is the answer."""
    answer = said("done", None, [ODD], "tool_calls")
    assert message_of(streamed(answer, [240, 250]))["content"] == message_of(streamed(answer))["content"]


def test_an_empty_answer_closes_the_open_block():
    assert message_of(streamed(said()))["content"] == []
    assert message_of(streamed(said(), [240]))["content"] == [{"type": "text", "text": ""}]


def test_a_failure_is_an_error_event_whatever_came_before():
    rejected = Rejected(503, "engine_unavailable", "no engine")
    right = {"type": "error", "error": {"type": "overloaded_error", "message": "no engine"}}
    for waits in ([], [10], [240]):
        reply = DIALECT.reply(request())
        stream = b"".join([reply.begin(1), *map(reply.alive, waits), reply.fail(rejected)])
        assert events_of(stream)[-1] == right


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_types(status, kind):
    body = json.loads(DIALECT.error(Rejected(status, "code", "why")))
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_claude_code_reads():
    rejected = Rejected(400, "context_length_exceeded", "why", (300_000, 200_000))
    error = json.loads(DIALECT.error(rejected))["error"]
    assert error["message"] == "prompt is too long: 300000 tokens > 200000 maximum"
    assert error["type"] == "invalid_request_error"


# ----------------------------------------------------------------------------- not streamed
def test_the_whole_message_holds_arguments_byte_for_byte():
    body = DIALECT.answer(request(), said("t", "why", [ODD], "tool_calls"))
    assert b'"input":' + ODD.encode() in body
    message = json.loads(body)
    assert [b["type"] for b in message["content"]] == ["thinking", "text", "tool_use"]
    assert (message["id"], message["type"], message["role"]) == ("msg_00000003", "message", "assistant")
    assert message["content"][2]["input"] == json.loads(ODD)


@pytest.mark.parametrize(
    "arguments", [BROKEN, "[1]", '"text"', "NaN", "no json", '{"a": "\\ud83d"}', "[" * 9999]
)
def test_malformed_arguments_become_claude_codes_own_marker(arguments):
    message = json.loads(DIALECT.answer(request(), said(calls=[arguments], finish="tool_calls")))
    marker = {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}
    assert message["content"][0]["input"] == marker


def test_no_arguments_are_an_empty_object():
    assert json.loads(DIALECT.answer(request(), said(calls=[""])))["content"][0]["input"] == {}


def test_the_sdks_stream_helper_gets_the_marker_too():
    """It parses inputs itself, and ends with an exception at one that is no JSON."""
    answer = said(calls=[BROKEN, ODD], finish="tool_calls")
    bad, odd = message_of(streamed(answer, names={WHOLE_INPUT: True}))["content"]
    assert json.loads(bad["partial_json"]) == {"__unparsedToolInput": {"raw": BROKEN, "len": len(BROKEN)}}
    assert odd["partial_json"] == ODD


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = (
    TEXTS
    | st.builds(json.dumps, JSON)
    | st.builds(json.dumps, st.dictionaries(TEXTS, JSON), indent=st.none() | st.just(2))
)


@settings(deadline=None)
@given(ARGUMENTS)
def test_arguments_survive_as_an_input(arguments):
    """As text where they are malformed; an object byte for byte; none at all as an empty object."""
    value = as_input(arguments)
    assert isinstance(msgspec.json.decode(value), dict)
    assert as_arguments(value) == (arguments or "{}")


@st.composite
def answers(draw):
    calls = draw(st.lists(ARGUMENTS, max_size=3))
    finish = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return said(draw(TEXTS), draw(st.none() | TEXTS), calls, finish)


@settings(deadline=None)
@given(answers(), st.lists(st.floats(0, 600), max_size=5).map(sorted))
def test_any_answer_reads_the_same_however_long_it_was_waited_for(answer, waits):
    message = message_of(streamed(answer, waits))
    content = [b for b in message["content"] if b != {"type": "text", "text": ""}]
    assert "".join(b.get("thinking", "") for b in content) == (answer.reasoning or "")
    assert "".join(b.get("text", "") for b in content) == answer.text
    calls = [(b["id"], b["name"], b.get("partial_json", "")) for b in content if b["type"] == "tool_use"]
    assert calls == [(c.id, c.name, c.arguments) for c in answer.calls]
    whole = json.loads(DIALECT.answer(request(), answer))
    assert [b["type"] for b in whole["content"]] == [b["type"] for b in content]
