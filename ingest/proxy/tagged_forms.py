"""Tool calls as tags, a tag for each argument, whose values have the types of the tool's schema.

    <tool_call>                                <tool_call>NAME
    <function=NAME>                            <arg_key>KEY</arg_key>
    <parameter=KEY>                            <arg_value>VALUE</arg_value>
    VALUE                                      </tool_call>
    </parameter>
    </function>
    </tool_call>

Here the arguments' JSON is ours, and as near to what was written as it can be: a string is the text
between the tags, a number, object or array stays the very text that the model wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ingest.proxy.call_forms import Call, Schemas

DEPTH_MAX = 16  # of references and unions in a schema
_KINDS = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


def _reference(pointer: str, root: Any) -> Any:
    """What `#/$defs/X` names; None where it names nothing here."""
    at = root
    for part in pointer.removeprefix("#/").split("/"):
        at = at.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at


def _types(schema: Any, root: Any, depth: int = 0) -> set[str]:
    """The JSON types a schema admits (integers are numbers); empty where it does not say."""
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return set()
    if isinstance(schema.get("$ref"), str):
        return _types(_reference(schema["$ref"], root), root, depth + 1)
    said = schema.get("type")
    if said:
        types = {str(t) for t in said} if isinstance(said, list | tuple) else {str(said)}
        return {"number" if t == "integer" else t for t in types}
    found: set[str] = set()
    for union in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(union) or ():
            found |= _types(part, root, depth + 1)
    values = [schema["const"]] if "const" in schema else schema.get("enum") or []
    found |= {_kind(value) for value in values}
    found |= {"object"} if "properties" in schema else set()
    return found | ({"array"} if "items" in schema else set())


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def typed(text: str, types: set[str]) -> str:
    """A value between tags as JSON text of one of `types`; a string where it is none of them."""
    bare = text.strip()
    if "null" in types and bare in ("null", "None"):
        return "null"
    if types and "string" not in types:
        if bare in ("True", "False", "None"):  # as a template prints them
            bare = {"True": "true", "False": "false", "None": "null"}[bare]
        try:
            kind = _kind(json.loads(bare, parse_constant=_refuse))
        except (ValueError, RecursionError):
            kind = ""
        if kind in types or kind == "null":
            return bare
    return json.dumps(text, ensure_ascii=False)


@lru_cache(maxsize=1)
def _last(text: str, tag: str) -> int:
    """Where a tag stands last; looked for once in a text, however many calls it holds."""
    return text.rfind(tag)


@dataclass(eq=False)
class Tagged:
    """One way of writing tags, as regular expressions.

    `opening` has a group `name`, `key` a group `key` and ends where the value begins; `ended` is the end of
    a value (group `next`: what follows one whose tag, `ending`, is missing; `broken`: another call begins),
    `shut` of a call, `close` of a malformed one; `begun` is as in Form.
    """

    name: str
    opening: re.Pattern[str]
    key: re.Pattern[str]
    ended: re.Pattern[str]
    ending: str
    shut: re.Pattern[str]
    close: re.Pattern[str]
    begun: re.Pattern[str]
    think: tuple[str, str] = ("<think>", "</think>")
    around: re.Pattern[str] | None = None
    typed: bool = True

    def read(
        self, text: str, opening: re.Match[str], schemas: Schemas, cut: bool
    ) -> tuple[list[Call], int] | None:
        """See Form."""
        name = opening["name"].strip()
        schema = schemas.get(name) or {}
        found = self._arguments(text, opening.end(), schema)
        if found is not None:
            values, end = found
            if cut and opening[0].startswith("<tool_call>") and not text.endswith("</tool_call>", 0, end):
                return None
            pairs = (f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in values.items())
            return [(name, "{" + ", ".join(pairs) + "}")], end
        close = self.close.search(text, opening.end())
        if cut and (close is None or self._open(text[opening.end() : close.start()])):
            return None
        stop, end = close.span() if close else (len(text), len(text))
        return [(name, text[opening.end() : stop].strip() or "{}")], end

    def _open(self, body: str) -> bool:
        """Does a text end inside a value?"""
        begun = max((key.end() for key in self.key.finditer(body)), default=-1)
        return begun >= 0 and body.find(self.ending, begun) < 0

    def _arguments(self, text: str, at: int, schema: Mapping[str, Any]) -> tuple[dict[str, str], int] | None:
        """({key: JSON text}, where the call ends); None where the call is not well formed."""
        properties = schema.get("properties") or {}
        values: dict[str, str] = {}
        while (key := self.key.match(text, at)) is not None:
            ended = self._value_end(text, key, properties, values)
            if ended is None:
                return None
            value = text[key.end() : ended[0]]
            values[key["key"]] = typed(value, _types(properties.get(key["key"]), schema))
            at = ended[1]
        shut = self.shut.match(text, at)
        return (values, shut.end()) if shut else None

    def _value_end(
        self, text: str, key: re.Match[str], properties: Mapping[str, Any], given: Mapping[str, str]
    ) -> tuple[int, int] | None:
        """(where a value ends, where what follows begins).

        Its closing tag may be missing before a key of this tool that is not given yet, or the call's end.
        """
        stop = len(text)
        if _last(text, self.ending) < key.end():  # no value is closed any more: not beyond this call
            close = self.close.search(text, key.end())
            stop = close.end() if close else stop
        for end in self.ended.finditer(text, key.end(), stop):
            if end.lastgroup == "broken":
                return None
            if end.lastgroup != "next":
                return end.start(), end.end()
            following = self.key.match(text, end.start())
            known = following is not None and following["key"] in properties
            if following is None or (known and following["key"] not in {*given, key["key"]}):
                return end.start(), end.start()
        return None


XML = Tagged(
    name="xml",
    opening=re.compile(r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>"),
    key=re.compile(r"\s*<parameter=(?P<key>[^>\n]+)>\n?"),
    ended=re.compile(
        r"\n?</parameter>(?=\s*(?:<parameter=[^>\n]+>|</function>))"
        r"|(?P<next>\n<parameter=[^>\n]+>|\n?</function>\s*</tool_call>)"
        r"|(?P<broken></tool_call>\s*<tool_call>\s*<function=)"
    ),
    ending="</parameter>",
    shut=re.compile(r"\s*</function>(?:\s*</tool_call>)?"),
    close=re.compile(r"(?:</function>\s*)?</tool_call>"),
    begun=re.compile(r"<tool_call>(?:(?!</?tool_call>)[\s\S])*\Z|<function=[^>\n]*\Z"),
)
GLM = Tagged(
    name="glm",
    opening=re.compile(r"<tool_call>\s*(?P<name>[^\s<>{}\"]+)\s*(?=<arg_key>|</tool_call>)"),
    key=re.compile(r"\s*<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>"),
    ended=re.compile(
        r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))|(?P<next></tool_call>(?=\s*(?:<tool_call>|\Z)))"
    ),
    ending="</arg_value>",
    shut=re.compile(r"\s*</tool_call>"),
    close=re.compile(r"</tool_call>"),
    begun=re.compile(r"<tool_call>(?:(?!</?tool_call>)[\s\S])*\Z"),
)
