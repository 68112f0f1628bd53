"""Replies of the Responses protocol: a strict client's view, the way back in, and any body at all."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.proxy.dialects.responses import Responses
from ingest.proxy.neutral import Answer, Message, Rejected, ToolCall
from tests.support.odd_bodies import JSON, odd_bodies
from tests.support.responses_events import RESPONSE_FIELDS, events_of, response_of

DIALECT = Responses()
ODD = '{\n  "z" : 5.0,\n  "command":  "echo h\\u00e9llo \\ud83d\\ude00 \\/tmp", "big":12345678901234567890\n}'
SPAWN = {"type": "function", "name": "spawn", "parameters": {}}
TOOLS = [
    {"type": "function", "name": "bash", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "ns", "description": "d", "tools": [SPAWN]},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "web_search"},
]
BODY = {"model": "m", "input": [{"role": "user", "content": "u"}], "tools": TOOLS, "metadata": {"a": "b"}}


def parse(body):
    return DIALECT.parse(json.dumps(body).encode(), {})


def answer(text="", reasoning=None, calls=(), finish="stop", call_id=7) -> Answer:
    made = tuple(ToolCall(f"call_{call_id:06d}_{k:02d}", *call) for k, call in enumerate(calls))
    return Answer(
        call_id=call_id,
        text=text,
        reasoning=reasoning,
        calls=made,
        finish="tool_calls" if made and finish == "stop" else finish,
        prompt_tokens=30,
        completion_tokens=5,
        cached_tokens=20,
        created_us=1_700_000_000_000_000,
    )


def streamed(said: Answer, body=BODY, waits=1) -> bytes:
    reply = DIALECT.reply(parse(body))
    return b"".join([reply.begin(30), *(reply.alive(10.0 * k) for k in range(waits)), reply.finish(said)])


def whole(said: Answer, body=BODY):
    return json.loads(DIALECT.answer(parse(body), said))


# ------------------------------------------------------------------------------- the words
def test_the_events_of_a_reply_in_the_order_of_the_real_api():
    """Golden: every event of this stream was read by the strict types of openai 3.57.0."""
    events = events_of(streamed(answer("hi", "so", [("bash", ODD), ("patch", '{"input": "p"}')])))
    item = ["output_item.added", "{}.delta", "{}.done", "output_item.done"]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *(kind.format("function_call_arguments") for kind in item),
        *(kind.format("custom_tool_call_input") for kind in item),
        "completed",
    ]


def test_the_items_of_an_answer():
    calls = [("bash", ODD), ("ns__spawn", "{}"), ("patch", '{"input": "*** Begin\\n"}')]
    part = {"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}
    assert whole(answer("hi", "so", calls))["output"] == [
        {
            "id": "rs_00000007",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "so"}],
            "encrypted_content": "headrace:00000007",
        },
        {
            "id": "msg_00000007",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        },
        {
            "id": "fc_00000007_0",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_000007_00",
            "name": "bash",
            "arguments": ODD,
        },
        {
            "id": "fc_00000007_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_000007_01",
            "name": "spawn",
            "arguments": "{}",
            "namespace": "ns",
        },
        {
            "id": "ctc_00000007_2",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_000007_02",
            "name": "patch",
            "input": "*** Begin\n",
        },
    ]


def test_the_response_object():
    said = whole(answer("hi"), BODY | {"temperature": 0.5, "parallel_tool_calls": False})
    assert set(said) == RESPONSE_FIELDS
    assert (said["object"], said["status"], said["created_at"]) == ("response", "completed", 1_700_000_000)
    assert (said["metadata"], said["temperature"], said["parallel_tool_calls"]) == ({"a": "b"}, 0.5, False)
    assert said["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 35,
    }


def test_case_23_the_token_limit_is_incomplete_and_holds_no_half_call():
    for said in (
        response_of(streamed(answer("cut", finish="length"))),
        whole(answer("cut", finish="length")),
    ):
        assert said["status"] == "incomplete"
        assert said["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in said["output"]] == ["incomplete"]
    after_a_call = whole(answer("so", calls=[("bash", ODD)], finish="length"))
    assert after_a_call["status"] == "incomplete"
    assert [item["status"] for item in after_a_call["output"]] == ["completed", "completed"]


@pytest.mark.parametrize("reasoning", [None, "", "only thinking"])
def test_a_reply_of_nothing_has_a_message_so_that_it_can_come_back(reasoning):
    """openai-agents asks again and again where there is no message at all."""
    said = whole(answer(reasoning=reasoning))["output"]
    assert said[-1]["type"] == "message"
    assert said[-1]["content"][0]["text"] == ""
    back = parse(BODY | {"input": BODY["input"] + said}).messages
    assert back[-1] == Message("assistant", "", reasoning=reasoning or None)


def test_case_20_the_keep_alive_is_an_event_with_data():
    reply = DIALECT.reply(parse(BODY))
    for n, stream in enumerate([reply.begin(1), reply.alive(10.0), reply.alive(20.0)]):
        last = events_of(stream)[-1]
        assert last["type"] == "response.in_progress"
        assert last["sequence_number"] == n + 1


def test_case_21_nothing_follows_the_terminal_event():
    assert events_of(streamed(answer("x")))[-1]["type"] == "response.completed"


def test_responses_have_ids_of_their_own():
    ids = {response_of(streamed(answer("x")))["id"], response_of(streamed(answer("x")))["id"]}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{ "input" : "a\\u00e9" }', "aé"),
        ('{"input": 1}', '{"input": 1}'),
        ("{}", "{}"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "a", }', '{"input": "a", }'),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_custom_tool_gets_its_text_or_all_that_was_written(arguments, text):
    assert whole(answer(calls=[("patch", arguments)]))["output"][0]["input"] == text


# ------------------------------------------------------------------------------ what fails
TOO_LONG = Rejected(400, "context_length_exceeded", "too long", (5000, 4096))


def test_errors_as_openai_words_them():
    error = json.loads(DIALECT.error(Rejected(400, "invalid_request", "no")))
    assert error == {
        "error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "invalid_request"}
    }
    assert json.loads(DIALECT.error(Rejected(503, "x", "no")))["error"]["type"] == "server_error"


def test_a_prompt_that_is_too_long_is_told_with_both_numbers():
    """Codex and OpenCode know it by its code, pi and LiteLLM by its words."""
    error = json.loads(DIALECT.error(TOO_LONG))["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "input"
    assert "exceeds the context window" in error["message"]
    assert "maximum context length is 4096 tokens" in error["message"]
    assert "5000 tokens" in error["message"]


@pytest.mark.parametrize(
    ("rejected", "code"),
    [
        (Rejected(503, "engine_unavailable", "no"), "server_error"),
        (Rejected(400, "messages_not_renderable", "no"), "invalid_prompt"),
        (Rejected(429, "too_many_calls", "no"), "rate_limit_exceeded"),
        (TOO_LONG, "context_length_exceeded"),
    ],
)
def test_a_stream_that_fails_ends_with_its_reason(rejected, code):
    reply = DIALECT.reply(parse(BODY))
    said = response_of(reply.begin(1) + reply.fail(rejected))
    assert said["status"] == "failed"
    assert said["error"]["code"] == code
    assert said["error"]["message"]


# ------------------------------------------------------------------------------- round trips
def codex(items):
    """Reasoning with `content: null`; all else as it was."""
    return [item | {"content": None} if item["type"] == "reasoning" else item for item in items]


def openai_agents(items):
    """The package's objects, dumped; outputs stand behind all the items."""
    return items


def langchain(items):
    """No status, no log-probabilities; ids are kept."""
    kept = copy.deepcopy(items)
    for item in kept:
        item.pop("status", None)
        for part in item.get("content") or []:
            part.pop("logprobs")
    return kept


def without_ids(items):
    """A client that keeps neither the ids of items nor what is encrypted."""
    return [{k: v for k, v in item.items() if k not in ("id", "encrypted_content")} for item in items]


NAMES = st.sampled_from(["bash", "ns__spawn", "unknown"])
ARGUMENTS = st.sampled_from([ODD, "{}", '{"a": 1.50, }', ""]) | st.text(max_size=12)
SAID = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ANSWERS = st.builds(
    answer,
    text=SAID,
    reasoning=st.none() | SAID.filter(bool),
    calls=st.lists(st.tuples(NAMES, ARGUMENTS.filter(lambda t: t.isprintable() or t == ODD)), max_size=3),
    finish=st.sampled_from(["stop", "length"]),
)
CLIENTS = [codex, openai_agents, langchain, without_ids]


@settings(deadline=None)
@given(st.lists(ANSWERS, min_size=1, max_size=3), st.sampled_from(CLIENTS), st.booleans())
def test_what_was_said_comes_back_as_it_was(answers, client, stream):
    """Text, reasoning, and calls with the same ids, names and arguments, byte for byte."""
    body = copy.deepcopy(BODY)
    expected = list(parse(body).messages)
    for number, drawn in enumerate(answers):
        calls = [(call.name, call.arguments) for call in drawn.calls]
        said = answer(drawn.text, drawn.reasoning, calls, drawn.finish, number)
        response = response_of(streamed(said, body)) if stream else whole(said, body)
        body["input"] += client(response["output"])
        expected.append(Message("assistant", said.text, reasoning=said.reasoning, calls=said.calls))
        for call in said.calls:
            body["input"].append({"type": "function_call_output", "call_id": call.id, "output": "r"})
            expected.append(Message("tool", "r", call_id=call.id))
        if not said.calls:
            body["input"].append({"role": "user", "content": "more"})
            expected.append(Message("user", "more"))
    assert list(parse(body).messages) == expected


@settings(deadline=None)
@given(ANSWERS, st.integers(0, 3))
def test_a_strict_client_reads_every_stream(said, waits):
    """And it ends with what the reply is without a stream."""
    from_stream, at_once = response_of(streamed(said, waits=waits)), whole(said)
    assert from_stream["output"] == at_once["output"]
    assert from_stream["usage"] == at_once["usage"]
    assert from_stream["status"] == at_once["status"]


# --------------------------------------------------------------------------------- any body
GOOD = BODY | {
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "s"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "spawn", "namespace": "ns", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "local_shell_call", "call_id": "e", "action": {"type": "exec", "command": ["ls"]}},
    ],
    "instructions": "i",
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
    "temperature": 1.0,
    "top_p": 1.0,
    "max_output_tokens": 5,
    "stream": True,
    "include": [],
}
WORDS = st.sampled_from(
    ["message", "reasoning", "function_call", "custom_tool_call_output", "item_reference", "input_image",
     "custom", "namespace", "function", "web_search", "user", "assistant",
     "call_000001_00", "rs_00000001", "none", ""]
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(odd_bodies(GOOD, WORDS) | JSON)
def test_any_json_is_a_request_or_a_400(body):
    try:
        request = parse(body)
    except Rejected as error:
        rejected = error
    else:
        said = answer("x", calls=[("patch", "{}"), ("ns__spawn", "")])
        assert request.digest("main", b"")
        assert DIALECT.answer(request, said)
        assert DIALECT.reply(request).finish(said)
        return
    assert rejected.status == 400
    assert DIALECT.error(rejected)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b"7", b'{"input": ' + b"[" * 100_000, b"9" * 5000]
)
def test_what_is_no_request_is_a_400(body):
    with pytest.raises(Rejected) as caught:
        DIALECT.parse(body, {})
    assert caught.value.status == 400


def test_half_a_surrogate_pair_is_no_character():
    body = rb'{"model": "m", "input": "cut \ud83d"}'
    assert DIALECT.parse(body, {}).messages[0].text == "cut \ufffd"
