"""What a strict client makes of a stream of Responses events; anything out of order fails a test.

The fields are those that the types of the `openai` package (3.57.0) ask for, no more and no fewer.
"""

from __future__ import annotations

import json
from typing import Any

PLACE = {"item_id", "output_index"}
FIELDS = {
    "response.created": {"response"},
    "response.in_progress": {"response"},
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.content_part.added": PLACE | {"content_index", "part"},
    "response.content_part.done": PLACE | {"content_index", "part"},
    "response.output_text.delta": PLACE | {"content_index", "delta", "logprobs"},
    "response.output_text.done": PLACE | {"content_index", "text", "logprobs"},
    "response.reasoning_summary_part.added": PLACE | {"summary_index", "part"},
    "response.reasoning_summary_part.done": PLACE | {"summary_index", "part"},
    "response.reasoning_summary_text.delta": PLACE | {"summary_index", "delta"},
    "response.reasoning_summary_text.done": PLACE | {"summary_index", "text"},
    "response.function_call_arguments.delta": PLACE | {"delta"},
    "response.function_call_arguments.done": PLACE | {"arguments"},
    "response.custom_tool_call_input.delta": PLACE | {"delta"},
    "response.custom_tool_call_input.done": PLACE | {"input"},
    "response.completed": {"response"},
    "response.incomplete": {"response"},
    "response.failed": {"response"},
}
ENDS = ("response.completed", "response.incomplete", "response.failed")
EMPTIED = {
    "reasoning": "summary",
    "message": "content",
    "function_call": "arguments",
    "custom_tool_call": "input",
}
ITEM_FIELDS = {
    "reasoning": {"id", "type", "summary", "encrypted_content"},
    "message": {"id", "type", "status", "role", "content"},
    "function_call": {"id", "type", "status", "call_id", "name", "arguments"},
    "custom_tool_call": {"id", "type", "status", "call_id", "name", "input"},
}
RESPONSE_FIELDS = {
    *("id", "object", "created_at", "status", "background", "error", "incomplete_details", "instructions"),
    *("max_output_tokens", "metadata", "model", "output", "parallel_tool_calls", "previous_response_id"),
    *("store", "temperature", "text", "tool_choice", "tools", "top_p", "truncation", "usage"),
}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The data of each event, whose name must be its type, with the fields of that type."""
    events = []
    for chunk in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = chunk.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert set(event) == FIELDS[event["type"]] | {"type", "sequence_number"}
        events.append(event)
    return events


class _Open:
    """An item of which the end has not come."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.index: int = event["output_index"]
        self.item: dict[str, Any] = event["item"]
        kind = self.item["type"]
        assert set(self.item) - {"namespace"} == ITEM_FIELDS[kind]
        assert not self.item[EMPTIED[kind]], "an item begins empty"
        assert self.item.get("status", "in_progress") == "in_progress"
        self.text: str | None = None
        self.parts: list[Any] = []

    def take(self, event: dict[str, Any]) -> None:
        assert (event["item_id"], event["output_index"]) == (self.item["id"], self.index)
        what = event["type"].removeprefix("response.")
        if what.endswith("part.added"):
            assert self.text is None
            assert event["part"]["text"] == ""
            self.text = ""
        elif what.endswith(".delta"):
            assert event["delta"], "a delta that adds nothing"
            self.text = (self.text or "") + event["delta"]
        elif what.endswith("part.done"):
            assert event["part"]["text"] == self.text
            self.parts.append(event["part"])
            self.text = None
        else:
            (whole,) = (event[k] for k in ("text", "arguments", "input") if k in event)
            self.text = self.text or ""
            assert whole == self.text

    def end(self, item: dict[str, Any]) -> None:
        field = EMPTIED[item["type"]]
        assert item[field] == (self.parts if isinstance(item[field], list) else self.text)
        same = {k: v for k, v in item.items() if k not in (field, "status")}
        assert same == {k: v for k, v in self.item.items() if k not in (field, "status")}


def response_of(stream: bytes) -> dict[str, Any]:
    """The response that a whole stream ends with, after every event has been checked against the others."""
    events = events_of(stream)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    current: _Open | None = None
    for event in events[:-1]:
        if "response" in event:
            assert event["response"] == events[0]["response"]
            assert current is None
            assert not items
        elif event["type"] == "response.output_item.added":
            assert current is None
            assert event["output_index"] == len(items)
            current = _Open(event)
        elif event["type"] == "response.output_item.done":
            assert current is not None
            current.end(event["item"])
            items.append(event["item"])
            current = None
        else:
            assert current is not None
            current.take(event)
    last = events[-1]["response"]
    assert events[-1]["type"] in ENDS
    assert last["status"] == events[-1]["type"].removeprefix("response.")
    assert current is None
    assert last["output"] == items
    assert set(last) == RESPONSE_FIELDS
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    assert last["id"] == events[0]["response"]["id"]
    return last
