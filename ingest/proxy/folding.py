"""What a chat template can be given: found out once by trying, the same for every call of the run.

    system messages in the list      as they are | as a user's message at their place | as part of one
    tool arguments                   as an object | as the text they are
    those that are no object         as the text they are | as {"arguments": the text}

Harnesses put system messages wherever they like (Claude Code: reminders between the turns), and some
templates refuse all but the first, leave the others out without a word, or bring them to the front, which
changes the prefix of all that was sampled.  So a message is folded where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingest.proxy.templating import RenderingError

Fields = dict[str, Any]
_PARTS = "\n\n"  # between messages that become one


@dataclass(frozen=True)
class Folding:
    """`leading`: is a first system message taken; `inside`: is one taken anywhere; `beside`: may two messages
    of a user stand side by side; `mapping`: are tool arguments taken as an object, `raw`: as text."""

    leading: bool = True
    inside: bool = True
    beside: bool = True
    mapping: bool = True
    raw: bool = True

    def fold(self, messages: Sequence[Fields]) -> list[Fields]:
        """The messages as the template takes them.

        What stands between two assistant messages stays there, and in its order: it came in one request.
        """
        if self.inside and self.leading:
            return list(messages)
        folded: list[Fields] = []
        for message in messages:
            last = folded[-1]["role"] if folded else "system"
            role = message["role"]
            if role == "system" and not (self.leading and last == "system"):
                role = "user"
            if folded and role == last and (role == "system" or (role == "user" and not self.beside)):
                folded[-1] = {**folded[-1], "content": folded[-1]["content"] + _PARTS + message["content"]}
            else:
                folded.append({**message, "role": role})
        return folded


def _says(render: Callable[[list[Fields]], str], messages: list[Fields]) -> bool:
    """Does the template take the messages, and say all of them, in their order?"""
    try:
        text = render(messages)
    except RenderingError:
        return False
    at = 0
    for message in messages:
        at = text.find(message["content"], at)
        if at < 0:
            return False
    return True


def probe(render: Callable[[list[Fields]], str]) -> Folding:
    """What a template takes, by trying.  `render`: of messages without tools, with a generation prompt.

    A thing counts as refused where the same list without it is not.
    """

    def takes(messages: list[Fields], without: list[Fields]) -> bool:
        return _says(render, messages) or not _says(render, without)

    system, user, answer = (
        {"role": role, "content": f"a probe of {role}"} for role in ("system", "user", "assistant")
    )
    again, third = {**user, "content": "a second probe"}, {**user, "content": "a third probe"}
    between, last = {**system, "content": "a system between"}, {**system, "content": "a system at the end"}
    call = {"type": "function", "id": "callprobe", "function": {"name": "f", "arguments": "no object"}}
    whole = {**call, "function": {"name": "f", "arguments": {}}}
    called, well = ({"role": "assistant", "content": "", "tool_calls": [c]} for c in (call, whole))
    return Folding(
        leading=takes([system, user], [user]),
        inside=takes([user, between, answer, again, last], [user, answer, again]),
        beside=takes([user, again, answer, third], [user, answer, third]),
        mapping=takes([user, well], [user, called]),
        raw=takes([user, called], [user, well]),
    )
