"""One execution over an engine pool while its engine leaves: what is found in caches, call by call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.engines.answer import Generation
from ingest.engines.cells import PoolLimits
from ingest.engines.client import new_rid
from ingest.engines.draining import drain, undrain
from ingest.engines.pool import EnginePool, Server

LIMITS = PoolLimits(wait_s_max=300.0)


class Asked(NamedTuple):
    """One call: where it ran, how much of its prompt was found there, how long its first token took."""

    what: str
    engine: str
    prompt: int
    cached: int
    first_token_ms: float


class Conversation:
    """An execution whose prompt grows by what was sampled and `more` tokens a turn, as a tool's result."""

    def __init__(self, pool: EnginePool, vocab: int, start: int, more: int) -> None:
        self._pool, self._more, self._vocab = pool, more, vocab
        self._random = np.random.default_rng(7)
        self.ids = self._words(start)

    def _words(self, n: int) -> npt.NDArray[np.int32]:
        return self._random.integers(2, self._vocab, n).astype(np.int32)

    async def turn(self, what: str, sampled: int = 8) -> Asked:
        """Time the first token by a call that samples one, then sample a turn and go on after it."""
        began = time.perf_counter()
        first = await self._ask(1)
        ms = 1e3 * (time.perf_counter() - began)
        asked = Asked(what, first.engine, len(self.ids), first.cached_tokens or 0, ms)
        answer = await self._ask(sampled)
        self.ids = np.concatenate([self.ids, answer.output_ids, self._words(self._more)])
        return asked

    async def _ask(self, n: int) -> Generation:
        return await self._pool.generate(
            self.ids, rid=new_rid(), affinity="e", new_tokens_max=n, temperature=1.0, timeout_s=300.0
        )


async def there_and_back(servers: Sequence[Server], *, vocab: int, start: int, more: int) -> list[Asked]:
    """Two turns at the first engine, which leaves; two at the second; one at the first, which is back."""
    pool = EnginePool(servers, LIMITS)
    one, two = (server.url for server in servers)
    try:
        await drain(pool, two)
        talk = Conversation(pool, vocab, start, more)
        asked = [await talk.turn("first call"), await talk.turn("next call, same cell")]
        undrain(pool, two)
        await drain(pool, one, to=[two])
        asked += [await talk.turn("after the hand-over"), await talk.turn("next call there")]
        undrain(pool, one)
        await drain(pool, two, to=[one])
        return [*asked, await talk.turn("back at the first cell")]
    finally:
        await pool.close()
