"""Is what a template makes of new messages the same without the long history before them?

A history of 400 calls costs a template 30 to 70 ms, at every call again.  What follows the last known turn
depends, in the templates of today, on little of it: the first messages, the last question of a user, the
neighbours.  So it is rendered after a window of the history, where trying shows that this template gives the
same text after every turn of a few conversations, with tools and without, under each way of thinking.

    system  user  turn  tool  turn  tool  user  turn  tool | turn  tool  tool  system
    ------------                          ----               ------------------------
         head                           question              what is rendered after
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol

from ingest.proxy.neutral import Message
from ingest.proxy.templating import RenderingError

_ROLES = (
    "uATAT", "uAuAu", "suAuATATu", "suATTATATuATATu", "uATsATuATT", "suuAuuATA", "uAsuATAsu", "susATATATAT",
)  # fmt: skip
"""Conversations to try: user, system, Assistant's turn, Tool."""
_TOOLS: tuple[Any, ...] = tuple(
    {"type": "function", "function": {"name": n, "description": n, "parameters": {"type": "object"}}}
    for n in ("probe_one", "probe_two")
)
_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False}, {"enable_thinking": True})


def window(messages: Sequence[Message], base: int) -> list[int]:
    """Indices of the messages that stand for those before `base`: up to the first turn; the last question."""
    head = 0
    while head < base and messages[head].role != "assistant":
        head += 1
    question = next((i for i in range(base - 1, head - 1, -1) if messages[i].role == "user"), None)
    return list(range(head)) + ([] if question is None else [question])


class Renders(Protocol):
    """What is tried: rendering.Renderer."""

    def after(
        self,
        messages: Sequence[Message],
        base: int,
        tools: Sequence[Any],
        options: dict[str, Any],
        *,
        now_us: int,
        turns: set[int],
        short: bool,
    ) -> str:
        """The marked text from the place of turn `base` on, after a window (`short`) or after all."""


def _conversation(roles: str) -> list[Message]:
    names = {"u": "user", "s": "system", "A": "assistant", "T": "tool"}
    return [
        Message(names[r], f"text {k}", call_id="callprobe" if r == "T" else "") for k, r in enumerate(roles)
    ]


def holds(renderer: Renders) -> bool:
    """Does the window stand for the whole, as far as trying tells?"""
    for roles, tools, options in product(_ROLES, ((), _TOOLS), _OPTIONS):
        messages = _conversation(roles)
        turns = {k for k, role in enumerate(roles) if role == "A"}
        try:
            for base in turns:
                whole, short = (
                    renderer.after(messages, base, tools, options, now_us=0, turns=turns, short=s)
                    for s in (False, True)
                )
                if whole != short:
                    return False
        except RenderingError:  # refused, whole or short: nothing is promised of such a list
            return False
    return True
