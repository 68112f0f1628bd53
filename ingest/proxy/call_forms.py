"""The forms in which models write tool calls, as far as their arguments are JSON text.

A form finds where a call begins and reads it.  Arguments leave as the model wrote them, byte for byte,
and a malformed call whose name can be told leaves with its raw arguments: the harness answers with its
own error, which is what the policy should learn from.  Loose reading never mends, it only looks for the
end of a call and for its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

Call = tuple[str, str]
Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of a tool's parameters, by the tool's name."""

_BEGIN = re.compile(r"\s*(?=[{\[])")
_json = json.JSONDecoder()


class Form(Protocol):
    """How one family of models writes calls.

    `think` are the tags around its reasoning, `opening` matches where a call begins, `begun` what is not a
    whole opening yet, `around` what frames a list of calls and is no text of its own.  `typed`: the tools'
    schemas decide what JSON the arguments are.
    """

    name: str
    think: tuple[str, str]
    opening: re.Pattern[str]
    begun: re.Pattern[str]
    around: re.Pattern[str] | None
    typed: bool

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """(calls, where they end) of what begins at `opening`; no calls where no name can be told.

        None where it has no end.  `cut`: the text ended at the token limit, so that what is open is half.
        """


class _Named(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_decode_named = msgspec.json.Decoder(_Named).decode


def json_end(text: str, begin: int = 0) -> int | None:
    """Where the object or array that begins at `begin` (after white space) ends; None where there is none."""
    start = _BEGIN.match(text, begin)
    try:
        return _json.raw_decode(text, start.end())[1] if start else None
    except (ValueError, RecursionError):
        return None


def _quoted(end: str) -> str:
    r"""A string, of malformed JSON too: without its quote it reaches to `end` beside a line break, which no
    string of JSON can hold, or to the end of the text."""
    return rf'"(?:[^"\\\n<`]++|\\.|(?!\n(?:{end})|(?:{end})\n)[\n<`])*+"?'


_TOKEN = re.compile(_quoted("</tool_call>") + r"|[{}\[\]:,]", re.DOTALL)


def _members(text: str) -> dict[str, str]:
    """Key to raw value of the first object in a text that is not quite JSON."""
    members: dict[str, str] = {}
    depth, quoted, key, begin = 0, "", None, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark[0] == '"':
            quoted = mark
        elif mark in "{[":
            depth += 1
        elif depth == 1 and mark == ":" and key is None:
            key, begin = quoted.strip('"'), token.end()
        elif mark in "}]" or (depth == 1 and mark == ","):
            if depth == 1 and key is not None:
                members.setdefault(key, text[begin : token.start()].strip())
                key = None
            depth -= mark in "}]"
            if depth <= 0:
                return members
    if key is not None:  # a bracket too few
        value = text[begin:].strip()
        whole = json_end(value, 0) == len(value)
        members.setdefault(key, value if whole else value.removesuffix("}").rstrip())
    return members


def _call(text: str) -> Call | None:
    try:
        named = _decode_named(text.encode())
        name, raw = named.name, bytes(named.arguments) or bytes(named.parameters)
        return (name, raw.decode() or "{}") if name else None
    except ValueError:  # msgspec's errors are ValueErrors
        members = _members(text)
    try:
        name = json.loads(members.get("name", ""), strict=False)
    except ValueError:
        return None
    if not isinstance(name, str) or not name:
        return None
    return name, members.get("arguments") or members.get("parameters") or "{}"


def _objects(text: str) -> list[str]:
    """The objects of an array, or the one that a text is."""
    if not text.lstrip().startswith("["):
        return [text]
    found, depth, begin = [], 0, 0
    for token in _TOKEN.finditer(text, text.index("[") + 1):
        if token[0] in "{[":
            begin = token.start() if depth == 0 else begin
            depth += 1
        elif token[0] in "}]":
            depth -= 1
            if depth == 0:
                found.append(text[begin : token.end()])
            elif depth < 0:
                return found
    return found + ([text[begin:]] if depth > 0 else [])


def calls_of(text: str) -> list[Call]:
    """(name, arguments) of `{"name": ..., "arguments": ...}`, or of a list of them, well formed or not.

    What names no name is left out.
    """
    return [call for call in map(_call, _objects(text)) if call]


class _Closing:
    """Where a call ends: at its end tag, outside strings."""

    def __init__(self, end: str) -> None:
        self._end = re.compile(end)
        self._either = re.compile(f"{_quoted(end)}|(?P<end>{end})", re.DOTALL)

    def find(self, text: str, begin: int, cut: bool) -> tuple[int, int] | None:
        """(start, stop) of the end tag.

        Where nothing was cut and none stands outside strings: of the first at all, or of the end of the text.
        """
        found = next((m for m in self._either.finditer(text, begin) if m["end"] is not None), None)
        if found is None and not cut:
            found = self._end.search(text, begin)
        if found is not None:
            return found.span()
        return None if cut else (len(text), len(text))


class Hermes:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

    name = "hermes"
    think = ("<think>", "</think>")
    typed = False
    opening = begun = re.compile("<tool_call>")
    around: re.Pattern[str] | None = None
    _closing = _Closing("</tool_call>")

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """See Form."""
        span = self._closing.find(text, opening.end(), cut)
        return (calls_of(text[opening.end() : span[0]]), span[1]) if span else None


class Framed:
    """A name in a header, then the arguments, then an end: Kimi K2, DeepSeek V3 and V3.1."""

    think = ("<think>", "</think>")
    typed = False

    def __init__(self, name: str, opening: str, begun: str, end: str, around: str) -> None:
        """`opening` has a group `name`; all are regular expressions."""
        self.name = name
        self.opening = re.compile(opening)
        self.begun = re.compile(begun)
        self.around: re.Pattern[str] | None = re.compile(around)
        self._closing = _Closing(end)

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """See Form."""
        span = self._closing.find(text, opening.end(), cut)
        if span is None:
            return None
        return [(opening["name"], text[opening.end() : span[0]].strip() or "{}")], span[1]


class Mistral:
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]` and, newer, `[TOOL_CALLS]name[ARGS]{...}`."""

    name = "mistral"
    think = ("[THINK]", "[/THINK]")
    typed = False
    opening = re.compile(
        r"\[TOOL_CALLS\]\s*(?:(?=\[\s*[{\]])|(?P<name>[^\s\[\]{}]+)(?:\[CALL_ID\][^\[\]]*)?\[ARGS\])"
    )
    begun = re.compile(r"\[TOOL_CALLS\]")
    around: re.Pattern[str] | None = None
    _following = _Closing(r"\[TOOL_CALLS\]")

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """See Form.  The value ends a call: there is no end tag."""
        begin = opening.end()
        following = self._following.find(text, begin, cut=True)
        said = text[begin : following[0] if following else len(text)]
        stop = json_end(said)
        if stop is None or (opening["name"] and said[stop:].strip()):
            if cut and following is None:
                return None
            stop = len(said)
        value = said[:stop].strip()
        calls = [(opening["name"], value or "{}")] if opening["name"] else calls_of(value)
        return calls, begin + stop


class Llama:
    """`{"name": ..., "parameters": {...}}`, the whole answer or after `<|python_tag|>`: Llama 3."""

    name = "llama"
    think = ("<think>", "</think>")
    typed = False
    opening = re.compile(r"(?:\A\s*|<\|python_tag\|>\s*|(?<=\})\s*;\s*)(?=\{)")
    begun = re.compile(r"<\|python_tag\|>")
    around: re.Pattern[str] | None = re.compile(r"<\|eom_id\|>")

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """See Form.  An object without parameters is an answer in JSON, not a call."""
        begin = opening.end()
        stop = json_end(text, begin)
        said = text[begin:stop]
        keys = _members(said).keys() & {"arguments", "parameters"}
        calls = calls_of(said) if keys else []
        if calls and stop is None and cut:
            return None
        return calls, len(text) if stop is None else stop


KIMI = Framed(
    "kimi",
    opening=(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>"
    ),
    begun=r"<\|tool_call(?:s_section)?_begin\|>",
    end=r"<\|tool_call_end\|>",
    around=r"<\|tool_calls_section_begin\|>|<\|tool_calls_section_end\|>",
)
# ruff: noqa: RUF001  (the bars of DeepSeek's tags are wide ones)
DEEPSEEK = Framed(
    "deepseek",
    opening=(
        r"<｜tool▁call▁begin｜>"
        r"(?:function<｜tool▁sep｜>(?=[^\n<]+\n```json))?(?P<name>[^\s<]+)(?:\n```json\n|<｜tool▁sep｜>)"
    ),
    begun=r"<｜tool▁calls?▁begin｜>",
    end=r"(?:\n?```)?<｜tool▁call▁end｜>",
    around=r"<｜tool▁calls▁begin｜>|<｜tool▁calls▁end｜>",
)
