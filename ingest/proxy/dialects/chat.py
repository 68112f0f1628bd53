"""OpenAI Chat Completions, streaming and not.

What the proxy cannot honour (several choices, stop strings, penalties, a forced tool, images) is
refused with a sentence; fields that do not change what is sampled are let pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from ingest.proxy.neutral import Answer, Message, Rejected, Request, Sampling, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
NEW_TOKENS_MAX = 1 << 31


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None
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
    n: int | None = None
    stop: Any = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Any = None
    response_format: Any = None
    logprobs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def _bad(sentence: str) -> Rejected:
    return Rejected(400, "invalid_request", sentence)


def _decoded(body: bytes) -> _Body:
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        raise _bad(f"the body is not a chat completion request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as first:
        # JavaScript clients cut text inside a surrogate pair; half a pair is no character at all.
        try:
            mended = json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
            return _decode(mended)
        except ValueError:
            raise _bad(f"the body is not JSON: {first}") from first


def _text(content: str | list[_Part] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            raise _bad(f"{where}: a part of type {part.type!r}; this model reads parts of type 'text' only")
    return "".join(part.text or "" for part in content)


def _arguments(value: str | dict[str, Any] | None) -> str:
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return value or ""


def _message(index: int, message: _Message) -> Message:
    where = f"messages[{index}]"
    role = ROLES.get(message.role)
    if role is None:
        raise _bad(f"{where}: role {message.role!r}; one of {', '.join(ROLES)} is needed")
    reasoning = message.reasoning_content or message.reasoning
    calls = message.tool_calls or () if role == "assistant" else ()
    return Message(
        role=role,
        text=_text(message.content, where),
        reasoning=reasoning if role == "assistant" and isinstance(reasoning, str) else None,
        calls=tuple(ToolCall(c.id, c.function.name, _arguments(c.function.arguments)) for c in calls),
        call_id=(message.tool_call_id or "") if role == "tool" else "",
        name=message.name or "",
    )


def _check(body: _Body) -> None:
    """What would change the sampling or the answer, and is not done, is not let pass in silence."""
    if not body.messages:
        raise _bad("messages is empty, at least one is needed")
    if body.n not in (None, 1):
        raise _bad(f"n is {body.n}; one choice a call is sampled, send the request {body.n} times")
    if body.stop:
        raise _bad("stop strings are not supported; the model's own stop tokens end a call")
    if body.frequency_penalty or body.presence_penalty or body.logit_bias:
        raise _bad("penalties and logit_bias are not supported: what is trained must be what was sampled")
    if body.logprobs:
        raise _bad("logprobs are not returned; they are in the run's log")
    if body.functions:
        raise _bad("functions are not supported; give them as tools")
    if body.tool_choice not in (None, "auto") and not (body.tool_choice == "none" and not body.tools):
        raise _bad(f"tool_choice is {body.tool_choice!r}; 'auto' is supported")
    if isinstance(body.response_format, dict) and body.response_format.get("type") != "text":
        raise _bad("response_format is not supported; 'text' is")


def _check_sampling(body: _Body) -> None:
    temperature, top_p, top_k = body.temperature, body.top_p, body.top_k
    if temperature is not None and not 0 <= temperature <= 100:
        raise _bad(f"temperature is {temperature}, 0 to 100 is needed")
    if top_p is not None and not 0 < top_p <= 1:
        raise _bad(f"top_p is {top_p}, above 0 and at most 1 is needed")
    if top_k is not None and top_k != -1 and not 1 <= top_k <= NEW_TOKENS_MAX:
        raise _bad(f"top_k is {top_k}, -1 (off) or at least 1 is needed")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name)
        if value is not None and not 1 <= value <= NEW_TOKENS_MAX:
            raise _bad(f"{name} is {value}, 1 to {NEW_TOKENS_MAX} is needed")


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
        events = [_event(head | {"choices": [said]}), _event(head | {"choices": [ended]})]
        if self._request.include_usage:
            events.append(_event(head | {"choices": [], "usage": _usage(answer)}))
        return b"".join(events) + b"data: [DONE]\n\n"

    def fail(self, rejected: Rejected) -> bytes:
        return b"data: " + Chat().error(rejected) + b"\n\n"


class Chat:
    """The dialect of `POST .../v1/chat/completions` (see `ingest.proxy.dialects.dialect.Dialect`)."""

    name = "chat"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Request:
        asked = _decoded(body)
        _check(asked)
        _check_sampling(asked)
        limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        options = asked.stream_options
        return Request(
            dialect=self.name,
            messages=tuple(_message(k, m) for k, m in enumerate(asked.messages)),
            tools=tuple(asked.tools or ()),
            options=asked.chat_template_kwargs or {},
            sampling=Sampling(
                asked.temperature,
                1.0 if asked.top_p is None else asked.top_p,
                -1 if asked.top_k is None else asked.top_k,
            ),
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
        kind = "invalid_request_error" if rejected.status < 500 else "server_error"
        error = {"message": rejected.sentence, "type": kind, "param": None, "code": rejected.code}
        return msgspec.json.encode({"error": error})
