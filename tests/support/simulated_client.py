"""What clients keep of a conversation, and how they write it down in each dialect; no client between."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.support.anthropic_events import message_of
from tests.support.responses_events import response_of
from tests.support.three_dialects import DIALECTS, PATHS

__all__ = ("DIALECTS", "PATHS", "Call", "Said", "body_of", "kept", "reply_of", "value_of")

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "number"}}}


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Said:
    """A message: of the system, the user, the assistant, or a tool's result (of call `call_id`)."""

    role: str
    text: str
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str = ""


def value_of(arguments: str) -> Any:
    """Arguments as an object; malformed ones as Claude Code keeps them."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}


# ------------------------------------------------------------------------------------ there
def body_of(dialect: str, said: list[Said], *, stream: bool, limit: int) -> bytes:
    """A request with these messages and one tool."""
    body: dict[str, Any] = {"model": "m", "stream": stream} | _WRITTEN[dialect](said)
    body["max_output_tokens" if dialect == "responses" else "max_tokens"] = limit
    return json.dumps(body).encode()


def _chat(said: list[Said]) -> dict[str, Any]:
    messages = []
    for one in said:
        message: dict[str, Any] = {"role": one.role, "content": one.text}
        if one.reasoning is not None:
            message["reasoning_content"] = one.reasoning
        if one.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in one.calls
            ]
        if one.call_id:
            message["tool_call_id"] = one.call_id
        messages.append(message)
    tool = {"type": "function", "function": {"name": "bash", "description": "d", "parameters": SCHEMA}}
    return {"messages": messages, "tools": [tool]}


def _responses(said: list[Said]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for one in said:
        if one.role == "tool":
            items.append({"type": "function_call_output", "call_id": one.call_id, "output": one.text})
            continue
        if one.reasoning is not None:
            summary = [{"type": "summary_text", "text": one.reasoning}]
            items.append({"type": "reasoning", "summary": summary})
        if one.text or not one.calls:
            kind = "output_text" if one.role == "assistant" else "input_text"
            content = [{"type": kind, "text": one.text}]
            items.append({"type": "message", "role": one.role, "content": content})
        items += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments}
            for c in one.calls
        ]
    tool = {"type": "function", "name": "bash", "description": "d", "parameters": SCHEMA}
    return {"input": items, "tools": [tool]}


def _anthropic(said: list[Said]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for one in (s for s in said if s.role != "system"):
        blocks: list[dict[str, Any]] = []
        if one.role == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": one.call_id, "content": one.text})
        if one.reasoning is not None:
            blocks.append({"type": "thinking", "thinking": one.reasoning, "signature": "s"})
        if one.role != "tool" and one.text:
            blocks.append({"type": "text", "text": one.text})
        blocks += [
            {"type": "tool_use", "id": c.id, "name": c.name, "input": value_of(c.arguments)}
            for c in one.calls
        ]
        role = "assistant" if one.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role == "user":
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    system = [{"type": "text", "text": s.text} for s in said if s.role == "system"]
    tool = {"name": "bash", "description": "d", "input_schema": SCHEMA}
    return {"system": system, "messages": messages, "tools": [tool]}


_WRITTEN = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}


# ------------------------------------------------------------------------------------- back
def reply_of(dialect: str, stream: bool, content: bytes) -> Said | None:
    """The whole message of a reply; None of one that is an error or has no end."""
    try:
        return _READ[dialect, stream](content)
    except (AssertionError, LookupError, ValueError):  # where a client hung up it is cut anywhere
        return None


def _of_chat(content: bytes) -> Said:
    return _chat_message(json.loads(content)["choices"][0]["message"])


def _chat_message(message: dict[str, Any]) -> Said:
    calls = [
        Call(c["id"], c["function"]["name"], c["function"]["arguments"])
        for c in message.get("tool_calls", ())
    ]
    text = message.get("content") or ""
    return Said("assistant", text, message.get("reasoning_content"), tuple(calls))


def _of_chat_stream(content: bytes) -> Said:
    events = [e.removeprefix("data: ") for e in content.decode().split("\n\n") if e.startswith("data: ")]
    assert events[-1:] == ["[DONE]"]
    deltas = [json.loads(e)["choices"][0]["delta"] for e in events[:-1]]
    assert len(deltas) == 2
    return _chat_message(deltas[0])


def _of_response(response: dict[str, Any]) -> Said:
    assert response["status"] in ("completed", "incomplete")
    text, reasoning, calls = "", None, []
    for item in response["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            reasoning = "".join(part["text"] for part in item["summary"])
        else:
            calls.append(Call(item["call_id"], item["name"], item["arguments"]))
    return Said("assistant", text, reasoning, tuple(calls))


def _of_message(message: dict[str, Any]) -> Said:
    text, reasoning, calls = "", None, []
    for block in message["content"]:
        if block["type"] == "text":
            text += block["text"]
        elif block["type"] == "thinking":
            reasoning = block["thinking"]
        else:
            arguments = block.get("partial_json") or json.dumps(block["input"])
            calls.append(Call(block["id"], block["name"], arguments))
    return Said("assistant", text, reasoning, tuple(calls))


_READ = {
    ("chat", False): _of_chat,
    ("chat", True): _of_chat_stream,
    ("responses", False): lambda content: _of_response(json.loads(content)),
    ("responses", True): lambda content: _of_response(response_of(content)),
    ("anthropic", False): lambda content: _of_message(json.loads(content)),
    ("anthropic", True): lambda content: _of_message(message_of(content)),
}


def kept(rng: Random, said: Said) -> Said:
    """A reply as its client will send it back: the same turn, written otherwise."""
    if rng.random() < 0.5:
        said = replace(said, reasoning=None)
    spaces = rng.choice([None, (",", ":"), (", ", ": ")])
    if spaces:
        calls = (replace(c, arguments=_again(c.arguments, spaces)) for c in said.calls)
        said = replace(said, calls=tuple(calls))
    return said


def _again(arguments: str, separators: tuple[str, str]) -> str:
    try:
        return json.dumps(json.loads(arguments), separators=separators, sort_keys=True)
    except ValueError:
        return arguments
