"""Sampled text to content, reasoning and tool calls (Hermes and Qwen form).

    <think>
    reasoning
    </think>

    content
    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>

Arguments leave as the model wrote them, byte for byte.  What is not a whole, well-formed call stays
text; a call that the token limit cut is neither a call nor text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import msgspec

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
_END = re.compile(r"\s*" + END_CALL)
_SPACE = re.compile(r"\s*")
_json = json.JSONDecoder()


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_object = msgspec.json.Decoder(dict).decode


@dataclass(frozen=True)
class Parsed:
    """`calls`: (name, arguments as JSON text) of each whole call, in order."""

    text: str
    reasoning: str | None
    calls: tuple[tuple[str, str], ...]


def _split_reasoning(text: str, thinking: bool) -> tuple[str | None, str]:
    """(reasoning, rest).  `thinking`: the prompt opened the block already."""
    start = _SPACE.match(text).end()  # type: ignore[union-attr]  # an empty match is a match
    if text.startswith(THINK, start):
        inside = text[start + len(THINK) :]
    elif thinking:
        inside = text
    else:
        return None, text
    reasoning, ended, rest = inside.partition(END_THINK)
    return reasoning.strip("\n"), rest.lstrip("\n") if ended else ""


def _call_at(text: str, start: int) -> tuple[tuple[str, str], int] | None:
    """((name, arguments), end) of the call whose JSON begins at `start`; None where it is malformed."""
    try:
        begin = _SPACE.match(text, start).end()  # type: ignore[union-attr]
        _, stop = _json.raw_decode(text, begin)
        call = _decode_call(text[begin:stop].encode())
        _decode_object(call.arguments)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    end = _END.match(text, stop)
    if end is None or not call.name:
        return None
    return (call.name, bytes(call.arguments).decode()), end.end()


def parse(text: str, *, cut: bool, thinking: bool = False) -> Parsed:
    """Take a sampled text (without its stop token) apart.

    `cut`: it ended at the token limit.  `thinking`: the prompt ended inside a think block.
    """
    reasoning, rest = _split_reasoning(text, thinking)
    calls: list[tuple[str, str]] = []
    said: list[str] = []
    at = 0
    while (start := rest.find(CALL, at)) >= 0:
        said.append(rest[at:start])
        found = _call_at(rest, start + len(CALL))
        end = rest.find(END_CALL, start)
        if found:
            call, at = found
            calls.append(call)
        elif end >= 0:  # malformed: text up to its end, whatever stands inside it
            at = end + len(END_CALL)
            said.append(rest[start:at])
        else:
            said.append("" if cut else rest[start:])
            at = len(rest)
    said.append(rest[at:])
    if calls:  # what stood between calls only to part them
        said = [part for part in said if part.strip()]
        return Parsed("".join(said).strip("\n"), reasoning, tuple(calls))
    return Parsed("".join(said), reasoning, ())
