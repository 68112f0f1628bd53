"""The stream of a Responses reply: the events, in the order and with the fields of OpenAI's own.

created, in_progress, in_progress ...      while the engine works (Codex ignores comments)
for each item   output_item.added, its parts with deltas, output_item.done
completed | incomplete | failed            the last event
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ingest.proxy.dialects.responses_items import output_items
from ingest.proxy.neutral import Answer, Rejected, Request

Event = dict[str, Any]
_EMPTIED = {
    "reasoning": "summary",
    "message": "content",
    "function_call": "arguments",
    "custom_tool_call": "input",
}


def _started(item: dict[str, Any]) -> dict[str, Any]:
    """An item before anything of it is there."""
    field = _EMPTIED[item["type"]]
    status = {"status": "in_progress"} if "status" in item else {}
    return item | {field: type(item[field])()} | status


def _delta(kind: str, where: Event, value: str, more: Event) -> Iterator[Event]:
    if value:
        yield {"type": f"response.{kind}.delta", **where, "delta": value, **more}


def _reasoning(item: dict[str, Any], where: Event) -> Iterator[Event]:
    for k, part in enumerate(item["summary"]):
        place = where | {"summary_index": k}
        text = part["text"]
        yield {"type": "response.reasoning_summary_part.added", **place, "part": part | {"text": ""}}
        yield from _delta("reasoning_summary_text", place, text, {})
        yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _message(item: dict[str, Any], where: Event) -> Iterator[Event]:
    for k, part in enumerate(item["content"]):
        place = where | {"content_index": k}
        text = part["text"]
        yield {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
        yield from _delta("output_text", place, text, {"logprobs": []})
        yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}


def _function_call(item: dict[str, Any], where: Event) -> Iterator[Event]:
    kind, arguments = "function_call_arguments", item["arguments"]
    yield from _delta(kind, where, arguments, {})
    yield {"type": f"response.{kind}.done", **where, "arguments": arguments}


def _custom_tool_call(item: dict[str, Any], where: Event) -> Iterator[Event]:
    kind, text = "custom_tool_call_input", item["input"]
    yield from _delta(kind, where, text, {})
    yield {"type": f"response.{kind}.done", **where, "input": text}


_PARTS: dict[str, Callable[[dict[str, Any], Event], Iterator[Event]]] = {
    "reasoning": _reasoning,
    "message": _message,
    "function_call": _function_call,
    "custom_tool_call": _custom_tool_call,
}


def item_events(items: list[dict[str, Any]]) -> Iterator[Event]:
    """The events of whole items, without sequence numbers."""
    for k, item in enumerate(items):
        yield {"type": "response.output_item.added", "output_index": k, "item": _started(item)}
        yield from _PARTS[item["type"]](item, {"item_id": item["id"], "output_index": k})
        yield {"type": "response.output_item.done", "output_index": k, "item": item}


def response_object(request: Request, response_id: str, created: int, status: str) -> dict[str, Any]:
    """A response without output.  What is long and the client's own (instructions, tools) is not repeated."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": request.new_tokens_max,
        "model": request.model,
        "output": [],
        "previous_response_id": None,
        "store": False,
        "temperature": request.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        **request.names["told"],
    }


def ended(response: dict[str, Any], request: Request, answer: Answer) -> dict[str, Any]:
    """The same response with its answer."""
    cut = answer.finish == "length"
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
    return response | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output_items(answer, request.names["tools"]),
        "usage": usage,
    }


class ResponsesReply:
    """See `ingest.proxy.dialects.dialect.Reply`.  `response`: the object that opens the stream."""

    def __init__(
        self, request: Request, response: dict[str, Any], error: Callable[[Rejected], Event]
    ) -> None:
        self._request = request
        self._response = response
        self._error = error
        self._sent = 0

    def _event(self, event: Event) -> bytes:
        data = msgspec.json.encode(event | {"sequence_number": self._sent})
        self._sent += 1
        return b"event: " + str(event["type"]).encode() + b"\ndata: " + data + b"\n\n"

    def begin(self, prompt_tokens: int) -> bytes:
        return self._event({"type": "response.created", "response": self._response}) + self.alive(0.0)

    def alive(self, waited_s: float) -> bytes:
        return self._event({"type": "response.in_progress", "response": self._response})

    def finish(self, answer: Answer) -> bytes:
        response = ended(self._response, self._request, answer)
        events = [self._event(event) for event in item_events(response["output"])]
        events.append(self._event({"type": f"response.{response['status']}", "response": response}))
        return b"".join(events)

    def fail(self, rejected: Rejected) -> bytes:
        failed = self._response | {"status": "failed", "error": self._error(rejected)}
        return self._event({"type": "response.failed", "response": failed})
