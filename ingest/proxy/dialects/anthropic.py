"""Anthropic Messages, streaming and not, with the counting of tokens and the listing of models.

What the proxy cannot honour (stop sequences, a forced tool, a format of the output, images) is refused
with a sentence; what does not change what is sampled (`cache_control`, `metadata`, `context_management`,
budgets of thinking, betas) is let pass.  `tool_choice: none` leaves the tools out of the prompt.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ingest.proxy.dialects import anthropic_stream as stream
from ingest.proxy.dialects.anthropic_blocks import Content, fold, system_text
from ingest.proxy.dialects.anthropic_tools import Tool, name_of, split
from ingest.proxy.dialects.common import bad, check_limit, decoded, no_tools, sampling_of
from ingest.proxy.neutral import Answer, Message, Rejected, Request


class _Message(msgspec.Struct, gc=False):
    role: str
    content: Content = None


class _Thinking(msgspec.Struct):
    type: str


class _OutputConfig(msgspec.Struct):
    format: Any = None


class _Body(msgspec.Struct):
    messages: list[_Message]
    model: str = ""
    system: Content = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    thinking: _Thinking | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[Any] | None = None
    output_config: _OutputConfig | None = None
    output_format: Any = None


_decode = msgspec.json.Decoder(_Body).decode


def _check(body: _Body) -> None:
    """What would change the sampling or the answer, and is not done, is not let pass in silence."""
    if not body.messages:
        raise bad("messages is empty, at least one is needed")
    if body.stop_sequences:
        raise bad("stop_sequences are not supported; the model's own stop tokens end a call")
    if body.output_format or (body.output_config and body.output_config.format):
        raise bad("output_config.format is not supported; what is sampled is free text")
    check_limit("max_tokens", body.max_tokens)


def _request(body: _Body, headers: Mapping[str, str]) -> Request:
    _check(body)
    body.top_k = body.top_k or None  # this API's 0 is off
    header, deferred = split(body.tools or [])
    system = system_text(body.system)
    known = {name_of(tool): tool for tool in header + deferred}
    messages = tuple(fold(((m.role, m.content) for m in body.messages), known))
    listed = {name_of(tool) for tool in header}
    deferred = tuple(tool for name, tool in known.items() if name not in listed)
    off = body.thinking is not None and body.thinking.type == "disabled"
    none = no_tools(body.tool_choice)
    return Request(
        dialect=Anthropic.name,
        messages=((Message("system", system),) if system else ()) + messages,
        tools=() if none else header,
        deferred=() if none else deferred,
        options={"enable_thinking": False} if off else {},
        sampling=sampling_of(body),
        new_tokens_max=body.max_tokens,
        stream=bool(body.stream),
        model=body.model,
        names={stream.WHOLE_INPUT: headers.get("x-stainless-helper-method") == "stream"},
    )


def _card(model: str) -> dict[str, Any]:
    return {"type": "model", "id": model, "display_name": model, "created_at": "1970-01-01T00:00:00Z"}


class Anthropic:
    """The dialect of `POST .../v1/messages` (see `ingest.proxy.dialects.dialect.Dialect`).

    `parse` is that of `.../v1/messages/count_tokens` too, answered by `counted`.
    """

    name = "anthropic"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Request:
        return _request(decoded(_decode, body, "a messages request"), headers)

    def answer(self, request: Request, answer: Answer) -> bytes:
        return stream.whole(request, answer)

    def reply(self, request: Request) -> stream.AnthropicReply:
        return stream.AnthropicReply(request, f"msg_{uuid.uuid4().hex}")

    def error(self, rejected: Rejected) -> bytes:
        return stream.error(rejected)

    def counted(self, prompt_tokens: int) -> bytes:
        """The reply of `count_tokens`."""
        return msgspec.json.encode({"input_tokens": prompt_tokens})

    def models(self, names: Sequence[str]) -> bytes:
        """The reply of `GET .../v1/models`; one page holds them all."""
        cards = [_card(name) for name in names]
        ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return msgspec.json.encode({"data": cards, "has_more": False} | ends)

    def model(self, name: str) -> bytes:
        """The reply of `GET .../v1/models/{name}`."""
        return msgspec.json.encode(_card(name))
