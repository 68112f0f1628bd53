"""Cells that leave, come back, fail, are added and removed, while executions ask: what must always hold.

- every call is answered once, with every token once;
- no cell ever runs more than its capacity, and places held or counted are given back;
- a cell that left runs nothing, and gets nothing until it is back;
- places that are held for calls on their way lapse.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random

import numpy as np
import pytest

from ingest.engines.answer import EngineUnavailable, Generation
from ingest.engines.cells import PoolLimits
from ingest.engines.client import new_rid
from ingest.engines.draining import drain, remove, undrain
from ingest.engines.parts import joined
from ingest.engines.pool import EnginePool
from tests.support.simulated_cell import SimulatedCell, token
from tests.support.virtual_loop import simulate

SCENARIOS = 150
LIMITS = PoolLimits(wait_s_max=5000.0)


class World:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.cells = {
            f"http://c{k}": SimulatedCell(f"http://c{k}", rng, None) for k in range(rng.randint(1, 4))
        }
        self.capacities = {url: rng.choice([None, 1, 2, 5]) for url in self.cells}
        for url, cell in self.cells.items():
            if rng.random() < 0.5:
                cell.capacity, self.capacities[url] = self.capacities[url], None
        self.pool = EnginePool(list(self.cells.values()), LIMITS, self.capacities)
        self.answers: Counter[str] = Counter()
        self.drains: list[asyncio.Task[None]] = []

    async def call(self, execution: str, first: int, prompt: int) -> None:
        """As ingest.proxy.calls asks: again after a failure, on after what an aborted attempt had."""
        ids = np.array([first, *range(1, prompt)], np.int32)
        wanted, parts = self.rng.randint(1, 60), list[Generation]()
        while True:
            sampled = [p.output_ids for p in parts]
            left = wanted - sum(map(len, sampled))
            if left == 0:
                break
            rid = new_rid()
            asking = asyncio.create_task(
                self.pool.generate(
                    np.concatenate([ids, *sampled]), rid=rid, affinity=execution, new_tokens_max=left,
                    execution=execution,
                )
            )  # fmt: skip
            if self.rng.random() < 0.05:
                await asyncio.sleep(self.rng.random())
                await self._abort(rid)
            elif self.rng.random() < 0.05:  # whoever asked goes, and asks again
                await asyncio.sleep(self.rng.random())
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                if asking.cancelled():
                    continue
            try:
                parts.append(await asking)
            except EngineUnavailable:
                await asyncio.sleep(0.05)
                continue
            if parts[-1].finish_reason != "abort":
                break
            await asyncio.sleep(0.05)
        assert joined(parts).output_ids.tolist() == [token(first, prompt + k) for k in range(wanted)]
        self.answers[f"{execution}:{first}"] += 1

    async def _abort(self, rid: str) -> None:
        with contextlib.suppress(EngineUnavailable):
            await self.pool.abort(rid)

    async def execution(self, name: str) -> None:
        for k in range(self.rng.randint(1, 4)):
            at_once = self.rng.choice([1, 1, 1, 3])
            await asyncio.gather(*(self.call(name, 10 * k + j + 1, 5) for j in range(at_once)))
            await asyncio.sleep(self.rng.choice([0.0, self.rng.random(), 10.0]))

    async def troubles(self) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * self.rng.choice([0.5, 5.0]))
            url = self.rng.choice(list(self.pool.members))
            cell, what = self.cells[url], self.rng.random()
            if what < 0.4:
                self.drains.append(asyncio.create_task(self._drain(url)))
            elif what < 0.6:
                undrain(self.pool, url)
            elif what < 0.7:
                cell.fail()
                asyncio.get_running_loop().call_later(self.rng.random() * 30, setattr, cell, "down", False)
            elif what < 0.8:
                cell.deaf = not cell.deaf
            elif what < 0.9:
                self._add()
            elif len(self.pool.members) > 1:
                self.drains.append(asyncio.create_task(self._remove(url)))

    def _add(self) -> None:
        url = f"http://c{len(self.cells)}"
        self.cells[url] = SimulatedCell(url, self.rng, None)
        self.capacities[url] = self.rng.choice([None, 1, 3])
        self.pool.add(self.cells[url], self.capacities[url])

    async def _drain(self, url: str) -> None:
        others = [u for u in self.pool.members if u != url]
        to = self.rng.sample(others, self.rng.randint(0, len(others)))
        drained = await drain(self.pool, url, to=to, finish_s=self.rng.choice([0.0, 0.0, 3.0]))
        member = self.pool.members.get(url)
        if member and member.health.to is not None and drained.left == 0:
            assert member.health.running == 0

    async def _remove(self, url: str) -> None:
        try:
            await remove(self.pool, url)
        except ValueError:  # another was quicker
            return
        if url not in self.pool.members:
            assert not self.cells[url].running

    def check(self) -> None:
        for url, member in self.pool.members.items():
            capacity = self.capacities[url]
            assert capacity is None or self.cells[url].most <= capacity, url
            assert (member.health.running, member.runs) == (0, set())
        assert not self.pool.waiting
        assert not self.pool._running_of


async def scenario(rng: Random) -> None:
    world = World(rng)
    troubles = asyncio.create_task(world.troubles())
    executions = [asyncio.create_task(world.execution(f"e{k}")) for k in range(rng.randint(1, 8))]
    until = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < until and not all(e.done() for e in executions):
        await asyncio.sleep(1.0)
    troubles.cancel()
    for url, cell in world.cells.items():
        cell.down = cell.deaf = False
        if url in world.pool.members:
            undrain(world.pool, url)
    await asyncio.gather(*executions)
    await asyncio.gather(*world.drains)
    await asyncio.sleep(LIMITS.reserve_s)
    assert all(member.health.reserved == 0 for member in world.pool.members.values())
    assert set(world.answers.values()) == {1}
    world.check()
    await world.pool.close()
    await asyncio.gather(troubles, return_exceptions=True)


@pytest.mark.parametrize("batch", range(10))
def test_whatever_the_cells_do(batch: int) -> None:
    for seed in range(SCENARIOS // 10 * batch, SCENARIOS // 10 * (batch + 1)):
        rng = Random(seed)
        try:
            simulate(scenario(rng), rng)
        except BaseException as error:
            error.add_note(f"scenario {seed}")
            raise
