"""One user's message in each dialect, streamed or not, and what a reply holds: no client between."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DIALECTS = ("chat", "responses", "anthropic")
PATHS = {"chat": "v1/chat/completions", "responses": "v1/responses", "anthropic": "v1/messages"}


def body_of(dialect: str, text: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """The body of a request with one user's message."""
    if dialect == "responses":
        return {"model": "m", "input": text, "stream": stream, **more}
    most = {"max_tokens": 200} if dialect == "anthropic" else {}
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream, **most, **more}


@dataclass
class Said:
    """Of a reply: the texts of its final answers (a good reply has one), the codes of its errors, and the
    kinds of its events, "comment" among them."""

    answers: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


def said(dialect: str, stream: bool, content: bytes) -> Said:
    """What a reply says."""
    found = Said()
    if stream:
        _read_stream(dialect, content.decode(), found)
    else:
        _read_whole(dialect, json.loads(content), found)
    return found


def _read_whole(dialect: str, body: dict[str, Any], found: Said) -> None:
    error = body.get("error")
    if error:
        found.errors.append(error["type"] if dialect == "anthropic" else error["code"])
    elif dialect == "chat":
        found.answers += [choice["message"]["content"] for choice in body["choices"]]
    elif dialect == "responses":
        found.answers.append(_output_text(body))
    else:
        found.answers.append("".join(b["text"] for b in body["content"] if b["type"] == "text"))


def _output_text(response: dict[str, Any]) -> str:
    items = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in items for part in item["content"])


def _read_stream(dialect: str, content: str, found: Said) -> None:
    assert content.endswith("\n\n")
    text: list[str] = []
    for block in content.split("\n\n")[:-1]:
        lines = block.splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if not data:
            assert all(line.startswith(":") for line in lines), block
            found.events.append("comment")
        elif data[0] == "[DONE]":
            found.events.append("done")
        else:
            _EVENTS[dialect](json.loads(data[0]), text, found)


def _chat_event(event: dict[str, Any], text: list[str], found: Said) -> None:
    if "error" in event:
        found.events.append("error")
        found.errors.append(event["error"]["code"])
        return
    found.events.append("chunk")
    for choice in event["choices"]:
        text.append(choice["delta"].get("content") or "")
        if choice["finish_reason"]:
            found.answers.append("".join(text))
            text.clear()


def _responses_event(event: dict[str, Any], text: list[str], found: Said) -> None:
    found.events.append(event["type"])
    if event["type"] == "response.output_text.delta":
        text.append(event["delta"])
    elif event["type"] in ("response.completed", "response.incomplete"):
        assert "".join(text) == _output_text(event["response"])
        found.answers.append("".join(text))
    elif event["type"] == "response.failed":
        found.errors.append(event["response"]["error"]["code"])


def _anthropic_event(event: dict[str, Any], text: list[str], found: Said) -> None:
    found.events.append(event["type"])
    if event["type"] == "content_block_delta":
        text.append(event["delta"].get("text", ""))
    elif event["type"] == "message_stop":
        found.answers.append("".join(text))
    elif event["type"] == "error":
        found.errors.append(event["error"]["type"])


_EVENTS = {"chat": _chat_event, "responses": _responses_event, "anthropic": _anthropic_event}
