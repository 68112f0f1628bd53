"""OpenAI Responses, streaming and not.

Nothing is stored: a request holds its whole history.  What the proxy cannot honour (an earlier
response by its id, a forced tool, structured output, images) is refused with a sentence; fields that
do not change what is sampled are let pass.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ingest.proxy.dialects.common import bad, check_limit, decoded, error_object, no_tools, sampling_of
from ingest.proxy.dialects.responses_items import Item, messages_of
from ingest.proxy.dialects.responses_stream import ResponsesReply, ended, response_object
from ingest.proxy.dialects.responses_tools import read_tools
from ingest.proxy.neutral import Answer, Message, Rejected, Request


class _Body(msgspec.Struct):
    input: str | list[Item] | None = None
    model: str = ""
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    top_logprobs: int | None = None
    text: Any = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def _check(body: _Body) -> None:
    """What would change the sampling or the answer, and is not done, is not let pass in silence."""
    if not body.input and body.input != "":
        raise bad("input is empty, a text or at least one item is needed")
    if body.previous_response_id:
        raise bad("previous_response_id is not supported: nothing is stored here, send all items as input")
    if body.conversation:
        raise bad("conversation is not supported: nothing is stored here, send all items as input")
    if body.prompt:
        raise bad("prompt is not supported: no prompts are stored here, send its text as input")
    if body.background:
        raise bad("background is not supported: nothing is stored here, wait for the reply or stream it")
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        raise bad("logprobs are not returned; they are in the run's log")
    form = body.text.get("format") if isinstance(body.text, dict) else None
    if isinstance(form, dict) and form.get("type") != "text":
        raise bad(f"text.format is of type {form.get('type')!r}; 'text' is supported")
    check_limit("max_output_tokens", body.max_output_tokens)


def _response_id() -> str:
    return f"resp_{secrets.token_hex(16)}"


def _failure(rejected: Rejected) -> dict[str, Any]:
    """The error of a response that failed.  Clients try again on server_error and not on invalid_prompt."""
    code = "server_error" if rejected.status >= 500 else "invalid_prompt"
    if rejected.status == 429:
        code = "rate_limit_exceeded"
    if rejected.numbers is not None:
        code = rejected.code
    return {"code": code, "message": _sentence(rejected)}


def _sentence(rejected: Rejected) -> str:
    if rejected.numbers is None:
        return rejected.sentence
    tokens, bound = rejected.numbers
    return (
        f"Your input exceeds the context window of this model: its maximum context length is {bound} tokens, "
        f"your input has {tokens} tokens. Please adjust your input and try again."
    )


class Responses:
    """The dialect of `POST .../v1/responses` (see `ingest.proxy.dialects.dialect.Dialect`).

    `Request.names`: `tools`, how calls of functions are worded (responses_tools), and `told`, the short
    fields that a response repeats.
    """

    name = "responses"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Request:
        asked = decoded(_decode, body, "a responses request")
        _check(asked)
        tools = read_tools(asked.tools or [])
        items = [Item(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
        first = (Message("system", asked.instructions),) if asked.instructions else ()
        told = {
            "metadata": asked.metadata or {},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
        }
        return Request(
            dialect=self.name,
            messages=(*first, *messages_of(items or (), tools)),
            tools=() if no_tools(asked.tool_choice) else tuple(tools.functions),
            options=asked.chat_template_kwargs or {},
            sampling=sampling_of(asked),
            new_tokens_max=asked.max_output_tokens,
            stream=bool(asked.stream),
            model=asked.model,
            names={"tools": tools.names, "told": told},
        )

    def answer(self, request: Request, answer: Answer) -> bytes:
        created = answer.created_us // 1_000_000
        response = response_object(request, _response_id(), created, "in_progress")
        return msgspec.json.encode(ended(response, request, answer))

    def reply(self, request: Request) -> ResponsesReply:
        response = response_object(request, _response_id(), int(time.time()), "in_progress")
        return ResponsesReply(request, response, _failure)

    def error(self, rejected: Rejected) -> bytes:
        error = error_object(rejected) | {"message": _sentence(rejected)}
        if rejected.numbers is not None:
            error["param"] = "input"
        return msgspec.json.encode({"error": error})
