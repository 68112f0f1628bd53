"""What is known of each engine, and which one a call goes to: decisions, with the time as argument.

state    it is so when                             new calls                calls that run there
ready    `/ready` says 200, or was not asked yet   come here                go on
paused   `/ready` says 503: it drains or pauses    where no engine is       go on: the engine holds or ends
                                                   ready                    them; after `paused_s_max`
                                                                            elsewhere, if one is ready
leaving  who uses the engines said so (`drain`)    none                     end, or go on elsewhere
broken   a call failed here: until a pause is      none                     go on
         over, doubled by each failure without a
         good answer between
silent   `/ready` is not answered                  none                     ended after `silent_s_max`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ingest.engines.client import Standing

State = Literal["ready", "paused", "leaving", "broken", "silent"]


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """`silent_s_max` outlasts four probes without an answer (5 s each), as of an engine that swaps;
    `paused_s_max` the longest update of weights: who paused the engine may have died before it went on.

    `lean_calls`: an execution leaves its engine, and what that holds of its prefixes, where it runs more
    than twice the calls of the least loaded, and so many on top: after a failure all would stay elsewhere.
    `wait_s_max`: so long a call waits for a place, and from half of that on it goes before all others.
    `abort_s_max`: a call that is to leave is aborted every `abort_again_s` (an abort may overtake its call),
    and its connection closed after so long.  `reserve_s`: its place elsewhere is held until it comes.
    """

    probe_s: float = 1.0
    silent_s_max: float = 20.0
    paused_s_max: float = 300.0
    pause_s_min: float = 0.25
    pause_s_max: float = 10.0
    lean_calls: int = 8
    affinities_max: int = 16_384
    wait_s_max: float = 600.0
    abort_s_max: float = 10.0
    abort_again_s: float = 1.0
    reserve_s: float = 10.0


@dataclass(slots=True, kw_only=True)
class Health:
    """What is known of one engine.  Times are arguments: seconds of any clock that only goes on.

    `capacity`: calls at once, None for no bound; `reserved` places are held for calls on their way here.
    `to`: where those go that leave, the best first; None: it stays.
    """

    limits: PoolLimits
    running: int = 0
    reserved: int = 0
    capacity: int | None = None
    to: Sequence[str] | None = None
    said: Standing = "ready"
    failures: int = 0  # since the last good answer
    reason: str = ""  # of the last failure
    closed_until: float = -math.inf
    said_since: float = math.inf
    _failed_at: float = field(default=-math.inf)

    @property
    def load(self) -> int:
        return self.running + self.reserved

    @property
    def full(self) -> bool:
        return self.capacity is not None and self.load >= self.capacity

    def state(self, now: float) -> State:
        if self.to is not None:
            return "leaving"
        if self.said != "silent" and now < self.closed_until:
            return "broken"
        return self.said

    def probed(self, said: Standing, now: float) -> None:
        if said != self.said:
            self.said, self.said_since = said, now

    def failed(self, began: float, now: float, reason: str) -> None:
        """A call that began at `began` failed.  Calls that one fault took along count as one failure."""
        self.reason = reason
        if began <= self._failed_at:
            return
        self._failed_at = now
        pause = min(self.limits.pause_s_min * 2**self.failures, self.limits.pause_s_max)
        self.failures = min(self.failures + 1, 32)
        self.closed_until = now + pause

    def succeeded(self) -> None:
        self.failures = 0
        self.closed_until = -math.inf

    def lost(self, now: float, elsewhere: bool) -> bool:
        """Whether calls that run there are to be given up.  `elsewhere`: another engine is ready."""
        waited = now - self.said_since
        if self.said == "paused":
            return elsewhere and waited > self.limits.paused_s_max
        return self.said == "silent" and waited > self.limits.silent_s_max

    def words(self, now: float) -> str:
        state = self.state(now)
        why = f" ({self.reason})" if self.reason and state in ("broken", "silent") else ""
        return state + why


def taking(engines: Mapping[str, Health], now: float) -> list[str]:
    """The engines that calls go to now, full or not; none where none takes any."""
    for wanted in ("ready", "paused"):
        urls = [url for url, engine in engines.items() if engine.state(now) == wanted]
        if urls:
            return urls
    return []


def choose(
    engines: Mapping[str, Health], before: str | None, now: float, order: Sequence[str] = ()
) -> str | None:
    """The engine for a call; None where those that take calls are full, or none does.

    `before`: where its execution went the last time, and its prefixes lie.  `order`: where it goes first
    of all; without one, where the engine said that it is leaving.
    """
    free = [url for url in taking(engines, now) if not engines[url].full]
    if not free:
        return None
    left = engines[before].to if before is not None and before in engines else None
    for url in order or left or ():
        if url in free:
            return url
    least = min(free, key=lambda url: engines[url].load)
    if before is not None and before in free:
        crowd = 2 * engines[least].load + engines[least].limits.lean_calls
        return before if engines[before].load <= crowd else least
    return least
