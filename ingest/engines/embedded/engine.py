"""One model behind HTTP: who waits for which call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np
from starlette.applications import Starlette
from tokenizers import Tokenizer

from ingest.engines.embedded import wire
from ingest.engines.embedded.batch import Batch, Call
from ingest.engines.embedded.metrics import Ended
from ingest.engines.embedded.weights import read_eos
from ingest.engines.embedded.worker import Worker


class Engine:
    """The batch's calls and those who wait for them.

    - At most `calls_max` calls run and `queue_max` wait; one more is refused with 503.
    - A client that hangs up aborts its call.
    """

    def __init__(
        self, folder: Path, batch: Batch, *, queue_max: int, seed: int, on_death: Callable[[], None]
    ) -> None:
        self.folder, self.batch, self.on_death = folder, batch, on_death
        self.shape, self.eos = batch.decoder.weights.shape, read_eos(folder)
        file = folder / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(file)) if file.exists() else None
        self.in_flight: dict[str, asyncio.Queue[Call | None]] = {}  # None: the model thread died
        self.calls_max, self.queue_max = batch.calls_max, queue_max
        self.ended = Ended()
        self._random = np.random.default_rng(seed)
        self.worker: Worker

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        self.worker = Worker(self.batch, loop=loop, deliver=self._deliver, on_death=self._died)
        self.worker.start()
        yield
        await asyncio.to_thread(self.worker.stop, 5.0)

    def _deliver(self, calls: list[Call]) -> None:
        for call in calls:
            if call.finish:
                self.ended.count(call)
            queue = self.in_flight.get(call.rid)
            if queue is not None:
                queue.put_nowait(call)

    def _died(self) -> None:
        for queue in self.in_flight.values():
            queue.put_nowait(None)
        self.on_death()

    # ------------------------------------------------------------------------------------ generation
    def open(self, body: bytes) -> tuple[wire.Request, Call, asyncio.Queue[Call | None]]:
        """Check a request and queue its call.  Raises wire.Refused."""
        request = wire.decode(body)
        rid = request.rid or uuid4().hex
        if rid in self.in_flight:
            raise wire.Refused(f"Duplicate request ID detected: {rid}")
        if len(self.in_flight) >= self.calls_max + self.queue_max:
            raise wire.Refused(
                f"{len(self.in_flight)} calls are in flight; at most {self.calls_max} run and "
                f"{self.queue_max} wait: try again later, or raise --queue-calls",
                503,
            )
        if not self.worker.alive:
            raise wire.Refused("the model thread has stopped; restart the engine", 503)
        call = wire.call_of(
            request,
            rid=rid,
            vocabulary=self.shape.vocab_size,
            places=self.batch.decoder.places,
            eos=self.eos,
            seed=int(self._random.integers(1 << 63)),
        )
        queue: asyncio.Queue[Call | None] = asyncio.Queue()
        self.in_flight[rid] = queue
        self.worker.add(call)
        return request, call, queue

    def close(self, rid: str, *, finished: bool) -> None:
        """The answer is out, or nobody waits for it any more."""
        del self.in_flight[rid]
        if not finished and self.worker.alive:
            self.worker.abort(rid, "the client has gone")
