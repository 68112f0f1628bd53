"""An engine leaves, and comes back, while calls run.

    ready -> leaving (no new calls; those that run may end within `finish_s`)
                -> the rest is aborted, a place held for each at its destination -> empty: drained
    leaving -> ready                                                                (undrain, at any moment)

A place is looked for in the order that was given (an engine of its own first, then those that leave last,
as the scheduler knows), then where the fewest calls run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from ingest.engines.answer import EngineError
from ingest.engines.pool import EnginePool, Member, Run
from lake.metrics import proxy_metrics


class UnknownEngine(ValueError):
    """No engine of this pool: which, and what there is."""


class Drained(NamedTuple):
    """What became of the calls that ran there; `left` still run, since it was undrained meanwhile."""

    finished: int
    moved: int
    left: int
    seconds: float


def member_of(pool: EnginePool, url: str) -> Member:
    """An engine by its URL.  Raises UnknownEngine."""
    member = pool.members.get(url.rstrip("/"))
    if member is None:
        raise UnknownEngine(f"no engine {url} here; there are {', '.join(pool.members)}")
    return member


async def drain(pool: EnginePool, url: str, *, to: Sequence[str] = (), finish_s: float = 0.0) -> Drained:
    """No new calls go to an engine, and those that run there go on elsewhere; returns when it is empty.

    Those that end within `finish_s` seconds end there.  `to`: where they go, the best first.  Asked again
    meanwhile, the new order holds, and the first request returns.  Raises UnknownEngine.
    """
    loop, member = asyncio.get_running_loop(), member_of(pool, url)
    order = [member_of(pool, u).client.url for u in to]
    if member.client.url in order:
        raise UnknownEngine(f"{url} is to leave: it cannot be where its calls go")
    began, running = loop.time(), member.health.running
    member.health.to = order
    member.changed.set()
    pool.hand_out()
    await _until_empty(member, order, began + finish_s)
    finished = running - member.health.running
    moved = await _move(pool, member, order)
    return Drained(finished, moved, member.health.running, loop.time() - began)


def undrain(pool: EnginePool, url: str) -> None:
    """It takes calls again.  Raises UnknownEngine."""
    member = member_of(pool, url)
    member.health.to = None
    member.changed.set()
    pool.hand_out()


async def remove(pool: EnginePool, url: str, *, to: Sequence[str] = (), finish_s: float = 0.0) -> Drained:
    """Drain an engine and forget it.  Raises UnknownEngine; ValueError where it is the last one."""
    member = member_of(pool, url)
    if len(pool.members) == 1:
        raise ValueError(f"{url} is the only engine; add another first")
    drained = await drain(pool, url, to=to, finish_s=finish_s)
    if not drained.left and pool.members.get(member.client.url) is member and len(pool.members) > 1:
        await pool.forget(member)
    return drained


async def _until_empty(member: Member, order: Sequence[str], until: float) -> None:
    """Until nothing runs there, or it leaves no more, or not in this order; at most until a time."""
    loop = asyncio.get_running_loop()
    while member.health.running and member.health.to is order and loop.time() < until:
        member.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await member.changed.wait()


async def _move(pool: EnginePool, member: Member, order: Sequence[str]) -> int:
    """Abort what runs there; the number of calls that go on elsewhere."""
    loop, limits = asyncio.get_running_loop(), pool.limits
    until = loop.time() + limits.abort_s_max
    moved: set[Run] = set()
    while member.health.running and member.health.to is order:
        new = [run for run in member.runs if not run.leaving]
        for run in new:
            run.leaving = run.aborted = True
            pool.reserve(run)
        moved.update(new)
        if loop.time() >= until:
            for run in list(member.runs):
                run.cut(loop.time())
        else:
            await _abort(member, limits.abort_again_s)
        await _until_empty(member, order, loop.time() + limits.abort_again_s)
    n = sum(run.leaving for run in moved)
    proxy_metrics().moved(member.client.url, n)
    return n


async def _abort(member: Member, within_s: float) -> None:
    """Ask the engine to abort everything of ours; what it cannot be told of is cut."""
    loop = asyncio.get_running_loop()

    async def one(run: Run) -> None:
        try:
            async with asyncio.timeout(within_s):
                await member.client.abort(run.rid)
        except EngineError:
            run.cut(loop.time())
        except TimeoutError:
            return  # it is asked again, or cut in the end

    await asyncio.gather(*(one(run) for run in member.runs))
