"""Several engines as one: a call goes where its execution went before, or where the fewest calls run.

One try a call: where an engine fails, the caller asks again (ingest.proxy.calls does, with the same
prompt ids) and the call goes elsewhere.

state    it is so when                             new calls                calls that run there
ready    `/ready` says 200, or was not asked yet   come here                go on
paused   `/ready` says 503: it drains or pauses    where no engine is       go on: the engine holds or ends
                                                   ready                    them; after `paused_s_max`
                                                                            elsewhere, if one is ready
broken   a call failed here: until a pause is      none                     go on
         over, doubled by each failure without a
         good answer between
silent   `/ready` is not answered                  none                     ended after `silent_s_max`

Every engine is asked for `/ready` all `probe_s` seconds.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ingest.engines.client import EngineClient, EngineUnavailable, Generation, Standing
from lake.metrics import proxy_metrics

State = Literal["ready", "paused", "broken", "silent"]


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """`silent_s_max` outlasts four probes without an answer (5 s each), as of an engine that swaps;
    `paused_s_max` the longest update of weights: who paused the engine may have died before it went on.

    `lean_calls`: an execution leaves its engine, and what that holds of its prefixes, where it runs more
    than twice the calls of the least loaded, and so many on top: after a failure all would stay elsewhere.
    """

    probe_s: float = 1.0
    silent_s_max: float = 20.0
    paused_s_max: float = 300.0
    pause_s_min: float = 0.25
    pause_s_max: float = 10.0
    lean_calls: int = 8
    affinities_max: int = 16_384


@dataclass(slots=True, kw_only=True)
class Health:
    """What is known of one engine.  Times are arguments: seconds of any clock that only goes on."""

    limits: PoolLimits
    running: int = 0
    said: Standing = "ready"
    failures: int = 0  # since the last good answer
    reason: str = ""  # of the last failure
    closed_until: float = -math.inf
    said_since: float = math.inf
    _failed_at: float = -math.inf

    def state(self, now: float) -> State:
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


def choose(engines: Sequence[Health], before: int | None, now: float) -> int | None:
    """The engine for a call, by its place; None where no engine takes one.

    `before`: where its execution went the last time.
    """
    for wanted in ("ready", "paused"):
        places = [k for k, engine in enumerate(engines) if engine.state(now) == wanted]
        if not places:
            continue
        least = min(places, key=lambda k: engines[k].running)
        if before in places:
            crowd = 2 * engines[least].running + engines[least].limits.lean_calls
            return before if engines[before].running <= crowd else least
        return least
    return None


@dataclass(eq=False)
class _Member:
    client: EngineClient
    health: Health
    attempts: set[asyncio.Timeout] = field(default_factory=set)  # a probe that finds nobody ends them


class EnginePool:
    """An engine as the proxy wants it, made of several; `Generation.engine` says which answered.

    Use it inside one event loop, with `close`.  Its state: some numbers an engine, the calls that run, and
    where the last `affinities_max` executions went.
    """

    def __init__(self, clients: Sequence[EngineClient], limits: PoolLimits | None = None) -> None:
        if not clients or len({c.url for c in clients}) != len(clients):
            raise ValueError(
                f"engines {', '.join(c.url for c in clients) or 'none'}: give one at least, each once"
            )
        self._limits = limits = limits or PoolLimits()
        self._members = [_Member(client, Health(limits=limits)) for client in clients]
        self._places: OrderedDict[str, int] = OrderedDict()
        self._running: dict[str, _Member] = {}
        self._probes: list[asyncio.Task[None]] = []

    async def generate(
        self, input_ids: npt.NDArray[np.int32], *, rid: str, affinity: str = "", **asked: Any
    ) -> Generation:
        """As EngineClient.generate, on the engine that is chosen.

        `affinity`: calls that give the same (an execution's id) share prefixes, and go to one engine.
        Raises EngineUnavailable where that engine fails or falls silent, or none takes calls now.
        """
        loop = asyncio.get_running_loop()
        if not self._probes:
            self._probes = [asyncio.create_task(self._probe(member)) for member in self._members]
        began = loop.time()
        member = self._member(affinity, began)
        health, url = member.health, member.client.url
        health.running += 1
        self._running[rid] = member
        try:
            async with asyncio.timeout(None) as attempt:
                member.attempts.add(attempt)
                try:
                    generation = await member.client.generate(input_ids, rid=rid, **asked)
                finally:
                    member.attempts.discard(attempt)
        except (EngineUnavailable, TimeoutError) as error:  # the second comes of the probe
            reason = str(error) or f"{url} has been {health.said} for too long"
            health.failed(began, loop.time(), reason)
            proxy_metrics().engine_failed(url)
            raise EngineUnavailable(reason) from error
        finally:
            health.running -= 1
            asked_for = self._running.pop(rid, None) is None
        if generation.finish_reason != "abort":
            health.succeeded()
        elif not asked_for:
            health.probed("paused", loop.time())  # till the next probe: a pause may end calls so
        return generation

    def _member(self, affinity: str, now: float) -> _Member:
        healths = [member.health for member in self._members]
        place = choose(healths, self._places.get(affinity), now)
        if place is None:
            told = "; ".join(f"{m.client.url} is {m.health.words(now)}" for m in self._members)
            raise EngineUnavailable(f"no engine takes calls: {told}")
        if affinity:
            self._places[affinity] = place
            self._places.move_to_end(affinity)
            if len(self._places) > self._limits.affinities_max:
                self._places.popitem(last=False)
        return self._members[place]

    async def _probe(self, member: _Member) -> None:
        loop = asyncio.get_running_loop()
        while True:
            member.health.probed(await member.client.standing(), loop.time())
            now = loop.time()
            elsewhere = any(m.health.state(now) == "ready" for m in self._members if m is not member)
            while member.attempts and member.health.lost(now, elsewhere):
                member.attempts.pop().reschedule(now)
            await asyncio.sleep(self._limits.probe_s)

    async def abort(self, rid: str) -> None:
        """Abort a call where it runs; one that runs nowhere is no error."""
        member = self._running.pop(rid, None)
        if member:
            await member.client.abort(rid)

    async def close(self) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        for member in self._members:
            await member.client.close()
