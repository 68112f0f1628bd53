"""Items of the Responses protocol to messages, and an answer to items.

What one reply said comes back as several items (reasoning, message, calls) and is one message of the
assistant here.  Our own items tell which reply they are of, by their ids, by the calls' ids or by
`encrypted_content`; others by their order, which in a reply is reasoning, text, calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingest.proxy.dialects.common import Part, arguments_text, bad, text_of
from ingest.proxy.dialects.responses_tools import Tools, call_item, custom_arguments
from ingest.proxy.neutral import Answer, Message, ToolCall

ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
REASONING, TEXT, CALL = range(3)
_OURS = re.compile(
    r"(?:rs|msg|fc|ctc)_([0-9]{8,12})(?:_[0-9]+)?|call_([0-9]{6,12})_[0-9]{2,}|headrace:([0-9]{8,12})"
)


class Item(msgspec.Struct):
    """An input item of any type; without a type it is a message."""

    type: str | None = None
    role: str | None = None
    id: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: Any = None
    action: Any = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


@dataclass
class _Said:
    """A message of the assistant that is being put together.  `reply`: the number of the call that
    answered it, where it is known; `stage`: what came last."""

    reply: int | None = None
    stage: int = REASONING
    text: str = ""
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    answered: bool = False

    def takes(self, reply: int | None, stage: int) -> bool:
        """Whether an item can be of the same reply."""
        if reply is not None and self.reply is not None:
            return reply == self.reply
        later = stage > self.stage or stage == self.stage != TEXT
        return later and not self.answered

    def message(self) -> Message:
        reasoning = "\n\n".join(self.reasoning) if self.reasoning else None
        return Message("assistant", self.text, reasoning=reasoning, calls=tuple(self.calls))


def _reply(item: Item) -> int | None:
    """The number of the call whose reply an item is of, where it is ours."""
    for mark in (item.id, item.call_id, item.encrypted_content):
        found = _OURS.fullmatch(mark) if mark else None
        if found:
            return int(found[1] or found[2] or found[3])
    return None


def _reasoning(item: Item) -> str:
    """A reasoning item's text: its summary (where ours stands) or its content."""
    content = [Part("text", item.content)] if isinstance(item.content, str) else item.content
    texts = [part.text for part in item.summary or () if part.text]
    return "\n\n".join(texts or [part.text for part in content or () if part.text])


def _action(action: Any) -> str:
    return msgspec.json.encode(action).decode() if isinstance(action, dict) else "{}"


def _parts_text(output: Any, where: str) -> str:
    """The text of an output that is a list of parts."""
    try:
        return text_of(msgspec.convert(output, list[Part] | None), where, "output", result=True)
    except msgspec.ValidationError as error:
        raise bad(f"{where}.output: {error}") from error


class _Folding:
    """Messages of items, in order."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._made: list[Message | _Said] = []
        self._said: _Said | None = None  # what an item of the assistant may still belong to

    def messages(self) -> Iterator[Message]:
        for made in self._made:
            yield made.message() if isinstance(made, _Said) else made

    def add(self, item: Item, where: str) -> None:
        """Raises Rejected for an item of a type that is not known here."""
        kind = item.type or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._think(item)
        elif kind in CALLS:
            self._call(item, where)
        elif kind in RESULTS:
            self._result(item, where)
        elif kind == "item_reference":
            raise bad(f"{where} refers to item {item.id!r}; nothing is stored here, send the item itself")
        else:
            raise bad(f"{where} is of type {kind!r}; this model reads messages, reasoning, calls and outputs")

    def _of_reply(self, item: Item, stage: int) -> _Said:
        reply = _reply(item)
        if self._said is None or not self._said.takes(reply, stage):
            self._said = _Said()
            self._made.append(self._said)
        said = self._said
        said.reply = reply if said.reply is None else said.reply
        said.stage = stage
        return said

    def _message(self, item: Item, where: str) -> None:
        role = ROLES.get(item.role or "")
        if role is None:
            raise bad(f"{where}: role {item.role!r}; one of {', '.join(ROLES)} is needed")
        text = text_of(item.content, where)
        if role == "assistant":
            self._of_reply(item, TEXT).text += text
        else:
            self._said = None
            self._made.append(Message(role, text))

    def _think(self, item: Item) -> None:
        text = _reasoning(item)
        if text or _reply(item) is not None:  # what another service has encrypted says nothing
            said = self._of_reply(item, REASONING)
            said.reasoning += [text] if text else []

    def _call(self, item: Item, where: str) -> None:
        name = "local_shell" if item.type == "local_shell_call" else item.name
        call_id = item.call_id or item.id
        if not name or not call_id:
            raise bad(f"{where} has {'no call_id' if name else 'no name'}; a call needs both")
        if item.type == "custom_tool_call":
            arguments = custom_arguments(item.input or "")
        elif item.type == "local_shell_call":
            arguments = _action(item.action)
        else:
            arguments = arguments_text(item.arguments)
        call = ToolCall(call_id, self._tools.name(item.namespace, name), arguments)
        self._of_reply(item, CALL).calls.append(call)

    def _result(self, item: Item, where: str) -> None:
        call_id = item.call_id or item.id
        if not call_id:
            raise bad(f"{where} has no call_id; the call that it answers is needed")
        if self._said:
            self._said.answered = True
        text = item.output if isinstance(item.output, str) else _parts_text(item.output, where)
        self._made.append(Message("tool", text, call_id=call_id))


def messages_of(items: Sequence[Item], tools: Tools) -> Iterator[Message]:
    """Raises Rejected (400) for an item that is not known or holds what is no text."""
    folding = _Folding(tools)
    for k, item in enumerate(items):
        folding.add(item, f"input[{k}]")
    return folding.messages()


# ------------------------------------------------------------------------------- the way back
def output_items(answer: Answer, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of an answer, with ids that are its own in the execution.

    A reply without text and calls has a message without text, so that it comes back and is continued.
    """
    number = f"{answer.call_id:08d}"
    cut = answer.finish == "length" and not answer.calls  # a call is whole, and so is what stood before it
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        items.append({"id": f"rs_{number}", "type": "reasoning", "summary": summary})
        items[0]["encrypted_content"] = f"headrace:{number}"
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
        items.append(message | {"status": "incomplete" if cut else "completed", "content": [part]})
    items += [call_item(call, names, f"{number}_{k}") for k, call in enumerate(answer.calls)]
    return items
