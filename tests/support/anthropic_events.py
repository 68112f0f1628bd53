"""What a strict client makes of a stream of Anthropic's events; anything out of order fails a test."""

from __future__ import annotations

import json
from typing import Any

GROWING = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The data of each event, whose name must be its type."""
    events = []
    for chunk in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = chunk.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        events.append(value)
    return events


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kind, name = GROWING[delta["type"]]
    assert block["type"] == kind
    block[name] = block.get(name, "") + delta[name]


def message_of(stream: bytes) -> dict[str, Any]:
    """The whole message; a tool_use keeps the text of its input under `partial_json`."""
    first, *rest = (e for e in events_of(stream) if e["type"] != "ping")
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    content, open_at = message["content"], None
    for event in rest[:-1]:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_at is None
            assert event["index"] == len(content)
            content.append(event["content_block"])
            open_at = event["index"]
        elif kind == "content_block_delta":
            assert event["index"] == open_at
            _grow(content[open_at], event["delta"])
        elif kind == "content_block_stop":
            assert event["index"] == open_at
            open_at = None
        else:
            assert kind == "message_delta"
            assert open_at is None
            assert event is rest[-2]
            message |= event["delta"]
            message["usage"] |= event["usage"]
    assert rest[-1] == {"type": "message_stop"}
    assert message["stop_reason"]
    return message
