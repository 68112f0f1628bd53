"""Messages of Anthropic, lists of content blocks, folded to neutral ones.

    user        text ...              a user message; blocks parted by a newline
                tool_result           a tool's message of its own, where it stands among the blocks
    assistant   text ...              its text, put together as it was said
                thinking              its reasoning; one without text, and redacted_thinking: not sent
                tool_use              a call; `input` is kept byte for byte
                server_tool_use, *_tool_result, mcp_tool_use
                                      from another server's past: folded to text
    system      text ...              a system message, where it stands
                tool_addition         the schema of a tool of `tools`, or one that it defines
                tool_removal          a sentence

Empty text blocks vanish (the keep-alive of anthropic_stream.py leaves one in a client's history), and one
text block is the same as its string.  Any other block is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ingest.proxy.dialects.anthropic_tools import Tool, chat_form, name_of, schemas
from ingest.proxy.dialects.common import MEDIA, bad, not_shown
from ingest.proxy.neutral import Message, Rejected, ToolCall

BILLING = "x-anthropic-billing-header"
UNPARSED = "__unparsedToolInput"


class _Change(msgspec.Struct, gc=False):
    """A tool that is brought in or taken away in the middle of a conversation."""

    type: str
    name: str = ""
    definition: Tool | None = None


class Block(msgspec.Struct, gc=False):
    """A content block of any type; what does not reach the prompt (`cache_control`) is not read."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    content: str | list[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    tool_name: str = ""
    tool: _Change | None = None
    title: str | None = None
    url: str | None = None
    source: Any = None


Content = str | list[Block] | None
Tools = dict[str, dict[str, Any]]


class _Unparsed(msgspec.Struct, forbid_unknown_fields=True):
    raw: str
    len: int | None = None


class _Marker(msgspec.Struct, forbid_unknown_fields=True):
    unparsed: _Unparsed = msgspec.field(name=UNPARSED)


_decode_marker = msgspec.json.Decoder(_Marker).decode
_decode_object = msgspec.json.Decoder(dict).decode


def _unreadable(where: str, index: int, block: Block, readable: str) -> Rejected:
    return bad(f"{where}[{index}]: a block of type {block.type!r}; {readable} can be read here")


# ------------------------------------------------------------------------------ arguments
def as_input(arguments: str) -> msgspec.Raw:
    """Arguments as a tool_use's `input`, which must be an object.

    Malformed ones become `{"__unparsedToolInput": {"raw": the text, "len": its characters}}`, which is
    what Claude Code makes of malformed arguments that it was streamed; `as_arguments` takes it back.
    """
    text = arguments or "{}"
    try:
        _decode_object(text)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        marker = {UNPARSED: {"raw": arguments, "len": len(arguments)}}
        return msgspec.Raw(msgspec.json.encode(marker))
    return msgspec.Raw(text.encode())


def as_arguments(value: msgspec.Raw) -> str:
    """A tool_use's `input` as JSON text, order, spaces and digits as received.  Raises Rejected (400)."""
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError as error:  # what is taken raw was not looked into
        raise bad(f"the body is not JSON: {error}") from error
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    if UNPARSED in text[:64]:
        try:
            unparsed = _decode_marker(text).unparsed
        except ValueError:
            return text
        if unparsed.len in (None, len(unparsed.raw)):
            return unparsed.raw
    return "{}" if text == "null" else text


# ----------------------------------------------------------------------------------- text
def _said(block: Block, where: str, index: int) -> str:
    if block.text is None:
        raise bad(f"{where}[{index}]: a text block without text")
    return block.text


def plain(content: Content, where: str) -> str:
    """The text of a string or of text blocks.  Raises Rejected (400) for any other block."""
    if content is None or isinstance(content, str):
        return content or ""
    for index, block in enumerate(content):
        if block.type != "text":
            raise _unreadable(where, index, block, "'text'")
    return "\n".join(t for k, b in enumerate(content) if (t := _said(b, where, k)))


def system_text(system: Content) -> str:
    """The system prompt without Claude Code's billing line, which changes between requests."""
    blocks = [Block("text", text=system)] if isinstance(system, str) else system or []
    kept = []
    for block in blocks:
        if (block.text or "").startswith(BILLING):
            rest = (block.text or "").partition("\n")[2]
            kept.append(Block("text", text=rest))
        else:
            kept.append(block)
    return plain(kept, "system")


def _from_elsewhere(block: Block) -> str:
    """The text of a server's block."""
    if block.type in ("server_tool_use", "mcp_tool_use"):
        inside = f"{block.name} {as_arguments(block.input)}"
    elif isinstance(block.content, dict):
        inside = msgspec.json.encode(block.content).decode()
    elif isinstance(block.content, list):
        inside = "\n".join(t for b in block.content for t in (b.title, b.url, b.text) if t)
    else:
        inside = block.content or ""
    return f"<{block.type}>\n{inside}\n</{block.type}>\n"


def _is_from_elsewhere(block: Block) -> bool:
    return block.type in ("server_tool_use", "mcp_tool_use") or block.type.endswith("_tool_result")


def _brought(block: Block, where: str, index: int, tools: Tools) -> dict[str, Any] | None:
    """The tool that a block brings in, noted among `tools`; None where another server would run it."""
    at, change, name = f"{where}[{index}]", block.tool, block.tool_name
    if block.type == "tool_addition":
        if change is None or change.type.startswith("mcp_"):
            return None
        if change.definition is not None:
            form = chat_form(change.definition, f"{at}.tool.definition")
            if form is not None:
                tools[name_of(form)] = form
            return form
        name = change.name
    if name not in tools:
        raise bad(f"{at}: {block.type} names {name!r}, which is not in tools")
    return tools[name]


def _read(content: str | list[Block] | dict[str, Any] | None, where: str, tools: Tools) -> str:
    """The text of a tool's result or of a system message; tools that it brings in are their schemas."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, dict):
        raise bad(f"{where} is an object; a string or a list of blocks is needed")
    texts: list[str] = []
    brought: list[Any] = []
    for index, block in enumerate(content):
        if block.type in ("tool_reference", "tool_addition"):
            form = _brought(block, where, index, tools)
            brought += [form] if form else []
            continue
        if brought:
            texts.append(schemas(brought))
            brought = []
        if block.type == "text":
            texts.append(_said(block, where, index))
        elif block.type == "tool_removal":
            texts.append(f"The tool {block.tool.name if block.tool else ''} is no longer available.")
        elif block.type in MEDIA:
            texts.append(not_shown(block.type))
        elif block.type == "search_result" and isinstance(block.content, list):
            source = block.source if isinstance(block.source, str) else ""
            texts += [block.title or "", source, plain(block.content, f"{where}[{index}].content")]
        else:
            raise _unreadable(where, index, block, "'text', 'search_result' and 'tool_reference'")
    if brought:
        texts.append(schemas(brought))
    return "\n".join(t for t in texts if t)


# ------------------------------------------------------------------------------- messages
def _user(content: Content, where: str, tools: Tools) -> Iterator[Message]:
    if not isinstance(content, list):
        yield Message("user", content or "")
        return
    said: list[str] = []
    results = 0
    for index, block in enumerate(content):
        if block.type == "text":
            if text := _said(block, where, index):
                said.append(text)
        elif block.type == "tool_result":
            if said:
                yield Message("user", "\n".join(said))
                said = []
            text = _read(block.content, f"{where}[{index}].content", tools)
            yield Message("tool", text, call_id=block.tool_use_id, failed=bool(block.is_error))
            results += 1
        elif _is_from_elsewhere(block):
            said.append(_from_elsewhere(block))
        else:
            raise _unreadable(where, index, block, "'text' and 'tool_result'")
    if said or not results:
        yield Message("user", "\n".join(said))


def _assistant(content: Content, where: str) -> Message:
    if not isinstance(content, list):
        return Message("assistant", content or "")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(content):
        if block.type == "text":
            texts.append(_said(block, where, index))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(ToolCall(block.id, block.name, as_arguments(block.input)))
        elif _is_from_elsewhere(block):
            texts.append(_from_elsewhere(block))
        elif block.type != "redacted_thinking":
            raise _unreadable(where, index, block, "'text', 'thinking' and 'tool_use'")
    return Message("assistant", "".join(texts), reasoning="".join(thoughts) or None, calls=tuple(calls))


def fold(messages: Iterable[tuple[str, Content]], tools: Tools) -> Iterator[Message]:
    """Neutral messages of (role, content) pairs, in order.

    `tools`, by name, are those that blocks may bring in; what blocks define is added to them.
    Raises Rejected (400) for roles and blocks that are not known.
    """
    for index, (role, content) in enumerate(messages):
        where = f"messages[{index}].content"
        if role == "user":
            yield from _user(content, where, tools)
        elif role == "assistant":
            yield _assistant(content, where)
        elif role == "system":
            yield Message("system", _read(content, where, tools))
        else:
            raise bad(f"messages[{index}]: role {role!r}; 'user', 'assistant' or 'system' is needed")
