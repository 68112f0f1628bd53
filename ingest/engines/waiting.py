"""Calls that wait for a free place at an engine, and which of them is next.

1. whoever has waited half of `wait_s_max`, in the order in which they came: none waits for ever;
2. an execution with fewer calls that run: one with many sub-agents does not hold up the others;
3. the oldest execution: it is the nearest to its end, and its group waits for it;
4. the call that came first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(eq=False)
class Waiting:
    """One call.  `granted` becomes the engine's URL, None where the call is aborted before it has one."""

    affinity: str
    age: int  # the number of its execution: lower is older
    number: int
    since: float
    granted: asyncio.Future[str | None]


class Queue:
    """A few thousand calls at most: finding the next looks at each."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: dict[Waiting, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Waiting) -> None:
        self._waiting[call] = None

    def discard(self, call: Waiting) -> None:
        self._waiting.pop(call, None)

    def next(self, now: float, running: Mapping[str, int]) -> Waiting | None:
        """Whose turn it is; `running` calls of each execution count against it."""
        return min(self._waiting, key=lambda call: self._key(call, now, running), default=None)

    def _key(self, call: Waiting, now: float, running: Mapping[str, int]) -> tuple[int, int, int, int]:
        if now - call.since >= self._patience_s:
            return 0, 0, 0, call.number
        return 1, running.get(call.affinity, 0), call.age, call.number
