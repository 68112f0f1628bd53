"""The part of OpenAI Chat Completions that courier speaks, and what it takes for a tool call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec


class Function(msgspec.Struct, frozen=True):
    """A call's tool and its arguments: JSON text, byte for byte as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool in an assistant's message."""

    id: str
    type: str = "function"
    function: Function


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message.  Fields that are UNSET do not appear on the wire."""

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] | msgspec.UnsetType | None = msgspec.UNSET
    tool_call_id: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def text(self) -> str:
        return self.content or ""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.tool_calls or ()


class Choice(msgspec.Struct, frozen=True):
    message: Message


class Completion(msgspec.Struct, frozen=True):
    """The answer to a request, as far as the harness reads it."""

    choices: tuple[Choice, ...]


def dumps(value: object) -> str:
    """Compact JSON: every word then has one token form, in the prompt and in what the model writes."""
    return json.dumps(value, separators=(",", ":"))


def _no_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """json keeps the last of two equal names: two tries at one field would pass for one."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is named twice")
    return fields


def only_call(message: Message) -> tuple[str, dict[str, Any]] | None:
    """Tool and arguments, if the message is exactly one well-formed call and nothing else.

    A call with text beside it, several calls at once, arguments that are no JSON object and a field
    named twice, at any depth, are all malformed: None.
    """
    if len(message.calls) != 1 or message.text.strip():
        return None
    function = message.calls[0].function
    try:
        arguments = json.loads(function.arguments, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError):
        return None
    return (function.name, arguments) if isinstance(arguments, dict) else None
