"""An engine in simulated time: its tokens tell where they stand, so that none can be lost or come twice."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.engines.answer import EngineUnavailable, Generation
from ingest.engines.client import Standing
from ingest.engines.figures import Load


def token(first: int, at: int) -> int:
    """What every cell samples at place `at` of a sequence that begins with `first`."""
    return (first * 7919 + at * 104_729) % 50_000 + 1


class SimulatedCell:
    """`capacity` is what it says of itself.  Down, it fails; deaf, it never answers an abort.

    `running` and `most` count calls as they are here, and `prompts` those whose prefix it computed.
    """

    def __init__(self, url: str, rng: Random, capacity: int | None) -> None:
        self.url, self._rng, self.capacity = url, rng, capacity
        self.down = self.deaf = False
        self.running = self.most = 0
        self.calls: list[tuple[str, str]] = []  # execution, rid
        self._ends: dict[str, asyncio.Event] = {}

    async def generate(
        self, input_ids: npt.NDArray[np.int32], *, rid: str, new_tokens_max: int, execution: str, **_: Any
    ) -> Generation:
        rng = self._rng
        self.running += 1
        self.most = max(self.most, self.running)
        self.calls.append((execution, rid))
        try:
            await asyncio.sleep(rng.random() * 0.3)  # an abort may come before it
            if self.down:
                raise EngineUnavailable(f"{self.url} is down")
            end = self._ends[rid] = asyncio.Event()
            began, s_per_token = asyncio.get_running_loop().time(), rng.choice([0.001, 0.01, 0.3])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(new_tokens_max * s_per_token):
                    await end.wait()
            passed = asyncio.get_running_loop().time() - began
        finally:
            self.running -= 1
            self._ends.pop(rid, None)
        if self.down:
            raise EngineUnavailable(f"{self.url} went away")
        n = min(new_tokens_max, int(passed / s_per_token)) if end.is_set() else new_tokens_max
        ids = [token(int(input_ids[0]), len(input_ids) + k) for k in range(n)]
        return Generation(
            output_ids=np.array(ids, np.int32),
            output_logprobs=np.zeros(n, np.float32),
            finish_reason="abort" if end.is_set() else "length",
            spans=(),
            cached_tokens=0,
            weight_version=0,
            engine=self.url,
        )

    async def abort(self, rid: str) -> None:
        await asyncio.sleep(self._rng.random() * 0.3)
        if self.down:
            raise EngineUnavailable(f"{self.url} is down")
        if self.deaf:
            await asyncio.sleep(100)
        if rid in self._ends:
            self._ends[rid].set()

    def fail(self) -> None:
        """Everything that runs here fails, and what comes, until it is up again."""
        self.down = True
        for end in self._ends.values():
            end.set()

    async def standing(self) -> Standing:
        await asyncio.sleep(self._rng.random() * 0.1)
        return "silent" if self.down else "ready"

    async def loads(self) -> tuple[Load, ...]:
        return (Load(running=self.running, waiting=0, running_max=self.capacity),)

    async def close(self) -> None:
        pass
