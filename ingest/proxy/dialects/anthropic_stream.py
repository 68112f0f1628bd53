"""Answers in Anthropic's shapes: a whole message, and the events of a streamed one.

A streamed reply:

    message_start, ping                            at once
    ping ...                                       while the engine works
    content_block_start (text), empty text_deltas  from OPEN_AFTER_S on: Claude Code cuts a stream that has
                                                   had only pings for 600 s (capture.md)
    content_block_stop                             of it; an answer that begins with text goes on in it
    start, delta, stop of each block; message_delta, message_stop
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from ingest.proxy.dialects.anthropic_blocks import as_input
from ingest.proxy.neutral import Answer, Rejected, Request

OPEN_AFTER_S = 240.0
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
WHOLE_INPUT = "whole_input"
"""In `Request.names`: the client (the stream helper of SDKs) parses inputs itself and dies of malformed."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def signature(thinking: str) -> str:
    """What signs a thinking block: a digest of its text, the same whenever the block is written again."""
    digest = hashlib.blake2b(thinking.encode("utf-8", "surrogatepass"), digest_size=24)
    return "headrace." + base64.b64encode(digest.digest()).decode()


def usage(answer: Answer) -> dict[str, int]:
    """Real numbers; `input_tokens` are those that were not cached, one at least, as the engine computes it.

    (Claude Code keeps message_start's number where this one is 0, and would count the prompt twice.)
    """
    cached = max(0, min(answer.cached_tokens, answer.prompt_tokens - 1))
    return {
        "input_tokens": answer.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": answer.completion_tokens,
    }


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    """The content of an answer; a tool_use's `input` is the arguments' text, as they were sampled."""
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        said = answer.reasoning
        blocks.append({"type": "thinking", "thinking": said, "signature": signature(said)})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in answer.calls
    ]


def _message(name: str, model: str) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "assistant", "model": model}


def whole(request: Request, answer: Answer) -> bytes:
    """The message at once."""
    content = _blocks(answer)
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = as_input(block["input"])
    stop_reason = STOP_REASONS.get(answer.finish, "end_turn")
    body = _message(f"msg_{answer.call_id:08d}", request.model)
    body |= {"content": content, "stop_reason": stop_reason, "stop_sequence": None, "usage": usage(answer)}
    return msgspec.json.encode(body)


def error(rejected: Rejected) -> bytes:
    """The body of an error, which is also the data of an `error` event."""
    kind = _ERRORS.get(rejected.status, "invalid_request_error" if rejected.status < 500 else "api_error")
    sentence = rejected.sentence
    if rejected.numbers:  # Claude Code reads the two numbers out of exactly this
        sentence = "prompt is too long: {} tokens > {} maximum".format(*rejected.numbers)
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": sentence}})


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def _start(index: int, block: dict[str, Any]) -> bytes:
    return _event("content_block_start", index=index, content_block=block)


def _delta(index: int, kind: str, name: str, value: str) -> bytes:
    return _event("content_block_delta", index=index, delta={"type": kind, name: value})


def _stop(index: int) -> bytes:
    return _event("content_block_stop", index=index)


def _streamed(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    """One block: its start, which is empty, what it holds, and its end."""
    kind = block["type"]
    if kind == "thinking":
        yield _start(index, block | {"thinking": "", "signature": ""})
        yield _delta(index, "thinking_delta", "thinking", block["thinking"])
        yield _delta(index, "signature_delta", "signature", block["signature"])
    elif kind == "text":
        yield _start(index, block | {"text": ""})
        yield _delta(index, "text_delta", "text", block["text"])
    else:
        yield _start(index, block | {"input": {}})
        yield _delta(index, "input_json_delta", "partial_json", block["input"])
    yield _stop(index)


class AnthropicReply:
    """A stream of message events.

    `message_id` must be new for each reply: Claude Code joins the blocks of messages that have the same id.
    """

    def __init__(self, request: Request, message_id: str) -> None:
        self._request = request
        self._message_id = message_id
        self._open = False

    def begin(self, prompt_tokens: int) -> bytes:
        counted = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
        message = _message(self._message_id, self._request.model)
        message |= {"content": [], "stop_reason": None, "stop_sequence": None}
        return (
            _event("message_start", message=message | {"usage": {"input_tokens": prompt_tokens} | counted})
            + PING
        )

    def alive(self, waited_s: float) -> bytes:
        """A ping; from OPEN_AFTER_S on an empty text in a block that stays open for it."""
        if waited_s < OPEN_AFTER_S:
            return PING
        opening = b"" if self._open else _start(0, {"type": "text", "text": ""})
        self._open = True
        return opening + _delta(0, "text_delta", "text", "")

    def finish(self, answer: Answer) -> bytes:
        blocks = _blocks(answer)
        events: list[bytes] = []
        if self._open:
            if blocks and blocks[0]["type"] == "text":
                events.append(_delta(0, "text_delta", "text", blocks.pop(0)["text"]))
            events.append(_stop(0))
        for index, block in enumerate(blocks, int(self._open)):
            if block["type"] == "tool_use" and self._request.names.get(WHOLE_INPUT):
                block["input"] = bytes(as_input(block["input"])).decode()
            events += _streamed(index, block)
        ended = {"stop_reason": STOP_REASONS.get(answer.finish, "end_turn"), "stop_sequence": None}
        events.append(_event("message_delta", delta=ended, usage=usage(answer)))
        return b"".join(events) + _event("message_stop")

    def fail(self, rejected: Rejected) -> bytes:
        return b"event: error\ndata: " + error(rejected) + b"\n\n"
