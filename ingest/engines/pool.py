"""Several engines as one: a call goes where its execution went before, or where the fewest calls run.

One try a call: where an engine fails, the caller asks again (ingest.proxy.calls does, with the same
prompt ids) and the call goes elsewhere.  Where engines are full, it waits for its turn
(ingest.engines.waiting); what an engine is and when it takes calls, ingest.engines.cells says.

An engine may leave and come back while it runs (`drain`, `undrain`), which is how a cell of GPUs becomes a
trainer.  Its calls end there as `abort` and are asked again by their caller, for whom a place elsewhere
is held: nothing is lost, and whoever waits for the answer sees one slow call.

    asked -> (waiting) -> running at A -> answered
                |            |  A drains: aborted, a place at B reserved
                |            +-> asked again, goes on after what it has -> running at B -> answered
                +- no place within `wait_s_max`: EngineBusy

`sglang-router` does not do this for us: it forwards neither aborts nor pauses nor updates of weights, and
knows of no execution whose prefixes lie somewhere.

Every engine is asked for `/ready` all `probe_s` seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingest.engines.answer import EngineBusy, EngineError
from ingest.engines.cells import Health, PoolLimits, choose, taking
from ingest.engines.client import EngineUnavailable, Generation, Standing
from ingest.engines.figures import Load
from ingest.engines.parts import nothing
from ingest.engines.waiting import Queue, Waiting
from lake.metrics import proxy_metrics

__all__ = ["EnginePool", "PoolLimits", "Server"]


class Server(Protocol):
    """What a pool needs of an engine: EngineClient has it, and PrefillDecode."""

    url: str

    @property
    def generate(self) -> Callable[..., Awaitable[Generation]]: ...

    async def abort(self, rid: str) -> None: ...

    async def standing(self) -> Standing: ...

    async def loads(self) -> Sequence[Load]: ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class Run:
    """A call that runs somewhere.  `reserved`: where a place is held for it, since it is to leave."""

    rid: str
    affinity: str
    member: Member
    attempt: asyncio.Timeout | None = None
    aborted: bool = False  # somebody asked for it: the engine does not pause
    leaving: bool = False
    reserved: Member | None = None

    def cut(self, now: float) -> None:
        """Close its connection: the engine sees that, and aborts."""
        if self.attempt:
            self.attempt.reschedule(now)
        self.attempt = None


@dataclass(eq=False)
class Member:
    client: Server
    health: Health
    given: int | None  # capacity, where it was said; else the engine is asked
    runs: set[Run] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a call ended; or it leaves no more
    probe: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Known:
    """An execution: its age, where it went the last time, the places that are held for it."""

    number: int
    url: str | None = None
    held: deque[tuple[Member, asyncio.TimerHandle]] = field(default_factory=deque)


class EnginePool:
    """An engine as the proxy wants it, made of several; `Generation.engine` says which answered.

    Use it inside one event loop, with `close`.  Its state: some numbers an engine, the calls that run or
    wait, and where the last `affinities_max` executions went.  `capacities`: calls at once by URL; an
    engine without one says itself how many it takes, and gets as many as come until it has.
    """

    def __init__(
        self,
        clients: Sequence[Server],
        limits: PoolLimits | None = None,
        capacities: Mapping[str, int | None] | None = None,
    ) -> None:
        if not clients or len({c.url for c in clients}) != len(clients):
            raise ValueError(
                f"engines {', '.join(c.url for c in clients) or 'none'}: give one at least, each once"
            )
        self.limits = limits or PoolLimits()
        self.members: dict[str, Member] = {}
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._numbers = count()
        self._runs: dict[str, Run] = {}
        self._waiting: dict[str, Waiting] = {}
        self._queue = Queue(self.limits.wait_s_max / 2)
        self._running_of: Counter[str] = Counter()
        self._metrics = proxy_metrics()
        self._probing = False
        for client in clients:
            self.add(client, (capacities or {}).get(client.url))

    # ---------------------------------------------------------------------------- engines
    def add(self, client: Server, capacity: int | None = None) -> None:
        """One more engine.  Raises ValueError where it is here already."""
        if client.url in self.members:
            raise ValueError(f"engine {client.url} is here already, each is needed once")
        health = Health(limits=self.limits, capacity=capacity)
        member = self.members[client.url] = Member(client, health, capacity)
        if self._probing:
            member.probe = asyncio.create_task(self._probe(member))
            self.hand_out()

    async def forget(self, member: Member) -> None:
        """An engine that nothing runs at is no part of the pool any more."""
        del self.members[member.client.url]
        if member.probe:
            member.probe.cancel()
            await asyncio.gather(member.probe, return_exceptions=True)
        await member.client.close()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def healths(self) -> dict[str, Health]:
        return {url: member.health for url, member in self.members.items()}

    # ------------------------------------------------------------------------------ calls
    async def generate(
        self, input_ids: npt.NDArray[np.int32], *, rid: str, affinity: str = "", **asked: Any
    ) -> Generation:
        """As EngineClient.generate, on the engine that is chosen.

        `affinity`: calls that give the same (an execution's id) share prefixes, and go to one engine.
        Raises EngineUnavailable where that engine fails or falls silent, or none takes calls now;
        EngineBusy where all are full for `wait_s_max`.
        """
        if not self._probing:
            self._probing = True
            for each in self.members.values():
                each.probe = asyncio.create_task(self._probe(each))
        member = await self._place(rid, affinity)
        if member is None:
            return nothing("abort")
        run = Run(rid, affinity, member)
        self._runs[rid] = run
        member.runs.add(run)
        try:
            return await self._run(run, input_ids, asked)
        finally:
            run.attempt = None
            del self._runs[rid]
            member.runs.discard(run)
            self._release(member, affinity)
            if run.reserved:
                self._hold(run)
            self.hand_out()

    async def _run(self, run: Run, input_ids: npt.NDArray[np.int32], asked: dict[str, Any]) -> Generation:
        loop, health, url = asyncio.get_running_loop(), run.member.health, run.member.client.url
        began = loop.time()
        try:
            async with asyncio.timeout(None) as run.attempt:
                generation = await run.member.client.generate(input_ids, rid=run.rid, **asked)
        except (EngineUnavailable, TimeoutError) as error:  # the second comes of the probe, or of leaving
            if run.leaving:
                raise EngineUnavailable(f"{url} is leaving, and did not give its call back") from error
            reason = str(error) or f"{url} has been {health.said} for too long"
            health.failed(began, loop.time(), reason)
            self._metrics.engine_failed(url)
            raise EngineUnavailable(reason) from error
        if generation.finish_reason != "abort":
            health.succeeded()
            run.leaving = False  # it was quicker than its abort
            if run.reserved:
                run.reserved.health.reserved -= 1
                run.reserved = None
        elif not run.aborted:
            health.probed("paused", loop.time())  # till the next probe: a pause may end calls so
        return generation

    async def abort(self, rid: str) -> None:
        """Abort a call where it runs, or waits; one that does neither is no error."""
        waiting, run = self._waiting.get(rid), self._runs.get(rid)
        if waiting and not waiting.granted.done():
            self._queue.discard(waiting)
            waiting.granted.set_result(None)
        elif run and not run.aborted:
            run.aborted = True
            await run.member.client.abort(rid)

    # ----------------------------------------------------------------------------- places
    def _of(self, affinity: str) -> _Known:
        """What is known of an execution; a call without one is the only one of its own."""
        if not affinity:
            return _Known(next(self._numbers))
        known = self._known.get(affinity)
        if known is None:
            known = self._known[affinity] = _Known(next(self._numbers))
            while len(self._known) > self.limits.affinities_max:
                _, old = self._known.popitem(last=False)
                for member, timer in old.held:
                    timer.cancel()
                    member.health.reserved -= 1
        self._known.move_to_end(affinity)
        return known

    async def _place(self, rid: str, affinity: str) -> Member | None:
        """A place for a call, which counts as running there from now on; None where it was aborted first."""
        loop = asyncio.get_running_loop()
        known = self._of(affinity)
        while known.held:
            member, timer = known.held.popleft()
            timer.cancel()
            member.health.reserved -= 1
            if member.client.url in taking(self.healths, loop.time()):
                return self._take(member, affinity, known)
        if not self._queue:
            url = choose(self.healths, known.url, loop.time())
            if url is not None:
                return self._take(self.members[url], affinity, known)
        if not taking(self.healths, loop.time()):
            raise EngineUnavailable(f"no engine takes calls: {self._words()}")
        return await self._wait(rid, affinity, known)

    def _take(self, member: Member, affinity: str, known: _Known) -> Member:
        known.url = member.client.url
        member.health.running += 1
        if affinity:
            self._running_of[affinity] += 1
        return member

    def _release(self, member: Member, affinity: str) -> None:
        member.health.running -= 1
        member.changed.set()
        if affinity:
            self._running_of[affinity] -= 1
            if not self._running_of[affinity]:
                del self._running_of[affinity]

    async def _wait(self, rid: str, affinity: str, known: _Known) -> Member | None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        call = Waiting(affinity, known.number, next(self._numbers), began, loop.create_future())
        self._queue.add(call)
        self._waiting[rid] = call
        self._metrics.calls_waiting.inc()
        self.hand_out()
        try:
            async with asyncio.timeout(self.limits.wait_s_max):
                url = await call.granted
        except BaseException as error:
            self._queue.discard(call)
            if (granted := _result(call.granted)) is not None:  # at the last moment
                self._release(self.members[granted], affinity)
                self.hand_out()
            if isinstance(error, TimeoutError):
                raise EngineBusy(
                    f"no place at an engine for {self.limits.wait_s_max:g} s ({self._words()}); raise their "
                    "capacity or proxy.engine_wait_s, or run fewer executions at once"
                ) from None
            raise
        finally:
            del self._waiting[rid]
            self._metrics.calls_waiting.dec()
            self._metrics.waited_seconds.observe(loop.time() - began)
        return None if url is None else self.members[url]

    def hand_out(self) -> None:
        """Places that are free, to those whose turn it is; where no engine takes calls, all are told so."""
        now = asyncio.get_running_loop().time() if self._queue else 0.0
        while call := self._queue.next(now, self._running_of):
            known = self._of(call.affinity)
            url = choose(self.healths, known.url, now)
            if call.granted.done():  # it was cancelled in this turn of the loop
                self._queue.discard(call)
            elif url is not None:
                self._queue.discard(call)
                self._take(self.members[url], call.affinity, known)
                call.granted.set_result(url)
            elif not taking(self.healths, now):
                self._queue.discard(call)
                call.granted.set_exception(EngineUnavailable(f"no engine takes calls: {self._words()}"))
            else:
                return

    def _words(self) -> str:
        now = asyncio.get_running_loop().time()
        return "; ".join(
            f"{url} is {m.health.words(now)}" + (f", {m.health.load} of {m.health.capacity}" * m.health.full)
            for url, m in self.members.items()
        )

    def reserve(self, run: Run) -> None:
        """A place for a call that is to leave, where one is free; it is found again by its execution."""
        to = run.member.health.to or ()
        now = asyncio.get_running_loop().time()
        url = choose(self.healths, None, now, [u for u in to if u in self.members])
        if run.affinity and url is not None:
            run.reserved = self.members[url]
            run.reserved.health.reserved += 1

    def _hold(self, run: Run) -> None:
        """Its caller asks again soon; where not, the place is free again."""
        assert run.reserved
        known = self._of(run.affinity)
        held = run.reserved

        def lapse() -> None:
            known.held.remove(entry)
            held.health.reserved -= 1
            self.hand_out()

        entry = held, asyncio.get_running_loop().call_later(self.limits.reserve_s, lapse)
        known.held.append(entry)

    # ----------------------------------------------------------------------------- probes
    async def _probe(self, member: Member) -> None:
        loop = asyncio.get_running_loop()
        asked = member.given is not None
        while True:
            member.health.probed(await member.client.standing(), loop.time())
            if member.health.said == "silent":
                asked = member.given is not None  # what comes up again may take more
            elif not asked:
                asked = await self._ask_capacity(member)
            now = loop.time()
            elsewhere = any(m.health.state(now) == "ready" for m in self.members.values() if m is not member)
            if member.health.lost(now, elsewhere):
                for run in member.runs:
                    run.cut(now)
            self.hand_out()
            await asyncio.sleep(self.limits.probe_s)

    async def _ask_capacity(self, member: Member) -> bool:
        """Learn what the engine says it runs at once, all its ranks; False where it is to be asked again."""
        try:
            most = [rank.running_max for rank in await member.client.loads()]
        except EngineUnavailable:
            return False
        except EngineError:
            most = []  # it does not say
        member.health.capacity = sum(n for n in most if n) if most and all(most) else None
        return True

    async def close(self) -> None:
        probes = [m.probe for m in self.members.values() if m.probe]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        for known in self._known.values():
            for _, timer in known.held:
                timer.cancel()
        for member in self.members.values():
            await member.client.close()


def _result(future: asyncio.Future[str | None]) -> str | None:
    """What it was given, if it was."""
    if not future.done() or future.cancelled() or future.exception():
        return None
    return future.result()
