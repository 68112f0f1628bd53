"""Tools of Anthropic Messages, in the form of chat completions.

    custom tool                      as it is
    `defer_loading: true`            not in the header: its schema appears where a `tool_reference` or a
                                     `tool_addition` names it
    bash_*, text_editor_*, memory_*  the harness runs them and the API has their schema built in: KNOWN
    web_search_*, code_execution_*, mcp_toolset and the like
                                     run on Anthropic's servers: left out, since nothing here would run them
    computer_*, any other without a schema
                                     refused by name: the harness counts on it, and the policy cannot know it

Where `tools` holds the API's own tool search (tool_search_tool_*), which nothing runs here, no tool is
deferred: the policy could never find one.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ingest.proxy.dialects.common import bad

SERVER = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")


class Tool(msgspec.Struct):
    """One of `tools`; what does not reach the prompt (`cache_control`, `strict`) is not read."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None


def _schema(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _words(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_TEXT: dict[str, Any] = {"type": "string"}
_LINE: dict[str, Any] = {"type": "integer"}
_RANGE: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_EDITING: dict[str, Any] = {"path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT}
_EDITING |= {"insert_line": _LINE, "insert_text": _TEXT, "view_range": _RANGE}

KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Run a command in a persistent bash session; restart: true starts a new session.",
        _schema([], command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor_": (
        "View, create and edit text files. view: path, view_range [first, last]; create: path, file_text; "
        "str_replace: path, old_str, new_str; insert: path, insert_line, insert_text.",
        _schema(["command", "path"], command=_words("view", "create", "str_replace", "insert"), **_EDITING),
    ),
    "memory_": (
        "Keep files in the directory /memories. view: path, view_range; create: path, file_text; "
        "str_replace: path, old_str, new_str; insert: path, insert_line, insert_text; delete: path; "
        "rename: old_path, new_path.",
        _schema(
            ["command"],
            command=_words("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITING,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}


def chat_form(tool: Tool, where: str) -> dict[str, Any] | None:
    """None: the tool is left out.  Raises Rejected (400)."""
    description, schema, kind = tool.description or "", tool.input_schema, tool.type or "custom"
    if schema is None:
        if kind.startswith(SERVER):
            return None
        prefix = next((p for p in KNOWN if kind.startswith(p)), None)
        if prefix is None:
            raise bad(f"{where} ({tool.name!r}, type {kind!r}): input_schema is missing")
        description, schema = KNOWN[prefix]
    if not tool.name:
        raise bad(f"{where}: name is missing")
    function = {"name": tool.name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def split(tools: list[Tool]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(the tools of the header, the deferred ones), each in the order received.  Raises Rejected (400)."""
    searched = any((tool.type or "").startswith("tool_search_tool_") for tool in tools)
    header: list[Any] = []
    deferred: list[Any] = []
    for index, tool in enumerate(tools):
        form = chat_form(tool, f"tools[{index}]")
        if form is not None:
            (deferred if tool.defer_loading and not searched else header).append(form)
    return tuple(header), tuple(deferred)


def name_of(form: dict[str, Any]) -> str:
    """Of a tool in the form of chat completions."""
    return str(form["function"]["name"])


def schemas(tools: list[Any]) -> str:
    """The text of tools where messages bring them in, spelt as chat templates spell a header's."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"<tools>\n{lines}\n</tools>"
