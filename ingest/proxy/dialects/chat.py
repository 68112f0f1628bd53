"""OpenAI Chat Completions, streaming and not.

What the proxy cannot honour (several choices, stop strings, penalties, a forced tool, images) is
refused with a sentence; fields that do not change what is sampled are let pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ingest.proxy.dialects.common import (
    Part,
    arguments_text,
    bad,
    check_function,
    check_limit,
    decoded,
    error_object,
    model_card,
    no_tools,
    sampling_of,
    text_of,
)
from ingest.proxy.neutral import Answer, Message, Rejected, Request, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    name: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    messages: list[_Message]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    functions: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: Any = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Any = None
    response_format: Any = None
    modalities: Any = None
    logprobs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def _message(index: int, message: _Message) -> Message:
    where = f"messages[{index}]"
    role = ROLES.get(message.role)
    if role is None:
        raise bad(f"{where}: role {message.role!r}; one of {', '.join(ROLES)} is needed")
    if message.function_call:
        raise bad(f"{where}: function_call is not supported; give it as tool_calls")
    ours = role == "assistant"
    if not ours and type(message.content) is str:  # most messages, of every request again
        answers = message.tool_call_id if role == "tool" else None
        return Message(role, message.content, call_id=answers or "", name=message.name or "")
    reasoning = message.reasoning_content or message.reasoning
    calls = [(c.id or "", c.function) for c in message.tool_calls or ()] if ours else []
    return Message(
        role=role,
        text=text_of(message.content, where, result=role == "tool")
        or (message.refusal or "" if ours else ""),
        reasoning=reasoning if ours and isinstance(reasoning, str) else None,
        calls=tuple(ToolCall(call_id, f.name, arguments_text(f.arguments)) for call_id, f in calls),
        call_id=(message.tool_call_id or "") if role == "tool" else "",
        name=message.name or "",
    )


def _tools(body: _Body) -> tuple[dict[str, Any], ...]:
    """The tools as they came.  Raises Rejected for one that is no function."""
    for k, tool in enumerate(body.tools or ()):
        if tool.get("type", "function") != "function":
            raise bad(f"tools[{k}] is of type {tool['type']!r}; 'function' is supported")
        check_function(tool.get("function"), f"tools[{k}].function")
    return () if no_tools(body.tool_choice) else tuple(body.tools or ())


def _check(body: _Body) -> None:
    """What would change the sampling or the answer, and is not done, is not let pass in silence."""
    if not body.messages:
        raise bad("messages is empty, at least one is needed")
    if body.n not in (None, 1):
        raise bad(f"n is {body.n}; one choice a call is sampled, send the request {body.n} times")
    if body.stop:
        raise bad("stop strings are not supported; the model's own stop tokens end a call")
    penalties = body.frequency_penalty or body.presence_penalty or body.logit_bias or body.min_p
    if penalties or body.repetition_penalty not in (None, 1):
        raise bad(
            "penalties, min_p and logit_bias are not supported: what is trained must be what was sampled"
        )
    if body.logprobs:
        raise bad("logprobs are not returned; they are in the run's log")
    if body.functions:
        raise bad("functions are not supported; give them as tools")
    if isinstance(body.response_format, dict) and body.response_format.get("type") != "text":
        raise bad("response_format is not supported; 'text' is")
    if body.modalities and body.modalities != ["text"]:
        raise bad(f"modalities is {body.modalities!r}; this model writes text only")


def _delta(name: str, answer: Answer) -> dict[str, Any]:
    """The answer's message, as a `message` or as one `delta` (where calls carry their index)."""
    delta: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.reasoning is not None:
        delta["reasoning_content"] = answer.reasoning
    if answer.calls:
        delta["tool_calls"] = [
            ({"index": k} if name == "delta" else {})
            | {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for k, c in enumerate(answer.calls)
        ]
    return delta


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _head(kind: str, request: Request, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.call_id:08d}",
        "object": kind,
        "created": answer.created_us // 1_000_000,
        "model": request.model,
    }


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class ChatReply:
    """A stream of chat completion chunks."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def begin(self, prompt_tokens: int) -> bytes:
        return self.alive(0.0)

    def alive(self, waited_s: float) -> bytes:
        """A comment: OpenCode, Qwen Code and the SDKs go on waiting by it (capture.md)."""
        return b": the engine is working\n\n"

    def finish(self, answer: Answer) -> bytes:
        head = _head("chat.completion.chunk", self._request, answer)
        said = {"index": 0, "delta": _delta("delta", answer), "finish_reason": None}
        ended = {"index": 0, "delta": {}, "finish_reason": answer.finish}
        none = {"usage": None} if self._request.include_usage else {}
        events = [_event(head | {"choices": [choice]} | none) for choice in (said, ended)]
        if self._request.include_usage:
            events.append(_event(head | {"choices": [], "usage": _usage(answer)}))
        return b"".join(events) + b"data: [DONE]\n\n"

    def fail(self, rejected: Rejected) -> bytes:
        return b"data: " + Chat().error(rejected) + b"\n\n"


class Chat:
    """The dialect of `POST .../v1/chat/completions` (see `ingest.proxy.dialects.dialect.Dialect`)."""

    name = "chat"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Request:
        asked = decoded(_decode, body, "a chat completion request")
        _check(asked)
        check_limit("max_tokens", asked.max_tokens)
        check_limit("max_completion_tokens", asked.max_completion_tokens)
        limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        options = asked.stream_options
        return Request(
            dialect=self.name,
            messages=tuple(_message(k, m) for k, m in enumerate(asked.messages)),
            tools=_tools(asked),
            options=asked.chat_template_kwargs or {},
            sampling=sampling_of(asked),
            new_tokens_max=limit,
            stream=bool(asked.stream),
            include_usage=bool(options and options.include_usage),
            model=asked.model,
        )

    def answer(self, request: Request, answer: Answer) -> bytes:
        choice = {"index": 0, "message": _delta("message", answer), "finish_reason": answer.finish}
        body = _head("chat.completion", request, answer) | {"choices": [choice], "usage": _usage(answer)}
        return msgspec.json.encode(body)

    def reply(self, request: Request) -> ChatReply:
        return ChatReply(request)

    def error(self, rejected: Rejected) -> bytes:
        error = error_object(rejected)
        if rejected.numbers is not None:
            tokens, bound = rejected.numbers
            error["param"] = "messages"
            error["message"] = (
                f"This model's maximum context length is {bound} tokens. However, your messages resulted in "
                f"{tokens} tokens. Please reduce the length of the messages."
            )
        return msgspec.json.encode({"error": error})

    def models(self, names: Iterable[str]) -> bytes:
        """The body of `GET .../v1/models`."""
        return msgspec.json.encode({"object": "list", "data": [model_card(name) for name in names]})

    def model(self, name: str) -> bytes:
        """The body of `GET .../v1/models/{name}`."""
        return msgspec.json.encode(model_card(name))
