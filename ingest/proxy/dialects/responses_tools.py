"""Tools of the Responses protocol as functions, and the way back from a function to what the client knows.

function     itself
namespace    its functions, each under `namespace__name`; calls go back with `namespace` and `name`
custom       a function of one string, `input`; calls go back with that text alone
others       hosted ones (web_search, ...) run at OpenAI: the policy is not told of them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingest.proxy.dialects.common import bad, check_function, named
from ingest.proxy.neutral import ToolCall

CALLABLE = ("function", "custom")


@dataclass
class Tools:
    """`functions` in neutral form.  `names`: a function's name -> `type`, `name`, `namespace` of its tool,
    where a call of it is not worded as a call of a function of that name."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    _rendered: dict[tuple[str, str], str] = field(default_factory=dict)

    def name(self, namespace: str | None, name: str) -> str:
        """The function's name under which the policy knows a tool; of a tool that is not listed, too."""
        key = (namespace or "", name)
        return self._rendered.get(key) or flat(*key)

    def add(self, tool: dict[str, Any], where: str, namespace: str, taken: set[str]) -> None:
        """Raises Rejected for a tool that cannot be put as a function."""
        check_function(tool, where)
        name, wanted = tool["name"], flat(namespace, tool["name"])
        rendered, k = wanted, 2
        while namespace and rendered in taken:
            rendered, k = f"{wanted}_{k}", k + 1
        taken.add(rendered)
        self._rendered[namespace, name] = rendered
        custom = tool["type"] == "custom"
        if custom or namespace:
            self.names[rendered] = {"type": tool["type"], "name": name, "namespace": namespace or None}
        function = {
            "name": rendered,
            "description": tool.get("description") or "",
            "parameters": _text_input(tool, where) if custom else tool.get("parameters") or NOTHING,
        }
        self.functions.append({"type": "function", "function": function})


NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def flat(namespace: str, name: str) -> str:
    """One name for a tool in a namespace."""
    return f"{namespace}__{name}" if namespace else name


def _text_input(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """The parameters of a custom tool.  Its grammar is told, since sampling is not constrained by it."""
    form = tool.get("format") or {}
    if not isinstance(form, dict):
        raise bad(f"{where}.format is {form!r}; an object is needed")
    told = "The text that the tool takes."
    if form.get("type") == "grammar":
        told += f" It follows this {form.get('syntax')} grammar:\n{form.get('definition')}"
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "description": told}},
        "required": ["input"],
    }


def _nested(tool: dict[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """(tool, its place in the body) of a namespace; its description leads that of its first tool."""
    named(tool.get("name"), where)
    told, inside = tool.get("description"), tool.get("tools")
    if not isinstance(inside, list):
        raise bad(f"{where}.tools is {inside!r}; a list of tools is needed")
    for k, inner in enumerate(inside):
        place = f"{where}.tools[{k}]"
        if not isinstance(inner, dict) or inner.get("type") not in CALLABLE:
            raise bad(f"{place} is {inner!r}; a tool of type {' or '.join(CALLABLE)} is needed")
        if isinstance(told, str) and told and k == 0:
            own = inner.get("description") or ""
            check_function(inner, place)
            yield inner | {"description": f"{told}\n\n{own}" if own else told}, place
        else:
            yield inner, place


def read_tools(tools: list[dict[str, Any]]) -> Tools:
    """Raises Rejected (400) for a tool without a type or a name, or of a form that is not the protocol's."""
    found = Tools()
    # A plain name is the client's own and stays; one that is put together makes way for it.
    taken = {
        tool["name"] for tool in tools if tool.get("type") in CALLABLE and isinstance(tool.get("name"), str)
    }
    for k, tool in enumerate(tools):
        where, kind = f"tools[{k}]", tool.get("type")
        if not isinstance(kind, str):
            raise bad(f"{where}.type is {kind!r}; a text is needed")
        if kind in CALLABLE:
            found.add(tool, where, "", taken)
        elif kind == "namespace":
            for inner, place in _nested(tool, where):
                found.add(inner, place, tool["name"], taken)
    return found


def custom_input(arguments: str) -> str:
    """The text for a custom tool in what the policy wrote; all of that where it holds no such text."""
    try:
        text = msgspec.json.decode(arguments, type=_Input).input
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return arguments
    return text


class _Input(msgspec.Struct):
    input: str


def custom_arguments(text: str) -> str:
    """The arguments that hold a custom tool's text, spaced as models write them."""
    return '{"input": ' + msgspec.json.encode(text).decode() + "}"


def call_item(call: ToolCall, names: dict[str, Any], item_id: str) -> dict[str, Any]:
    """The output item of a call; `item_id` without the prefix that its type asks for."""
    tool = names.get(call.name) or {"type": "function", "name": call.name, "namespace": None}
    namespace = {"namespace": tool["namespace"]} if tool["namespace"] else {}
    if tool["type"] == "custom":
        item = {"id": f"ctc_{item_id}", "type": "custom_tool_call", "status": "completed", "call_id": call.id}
        return item | {"name": tool["name"], "input": custom_input(call.arguments)} | namespace
    item = {"id": f"fc_{item_id}", "type": "function_call", "status": "completed", "call_id": call.id}
    return item | {"name": tool["name"], "arguments": call.arguments} | namespace
