"""Speed of the embedded engine through HTTP: `python -m tests.bench.bench_engine`.

The engine runs in its own process with one thread, the client in this one, over loopback.  The model
has the demo's size.  Prompts of conversations grow from 60 to 250 tokens, 16 are sampled a call; about
seven in ten prompt tokens are held already.  `cold` prompts of 150 tokens share nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import psutil

from ingest.engines.client import EngineClient, new_rid
from tests.support.engines import Running, embedded_engine
from tests.support.random_model import make_tiny_model

COMMAND = "python -m tests.bench.bench_engine"
NEW_TOKENS = 16
TOKENS_PER_S_MIN = 3500  # at 96 calls at once, on two quiet cores
VOCAB = 388


class Measured(NamedTuple):
    tokens_per_s: float
    ms_per_call: float
    cpu_ms_per_call: float  # of the engine's process, whatever else the machine does
    cached_share: float


def _words(random: np.random.Generator, n: int) -> np.ndarray:
    return random.integers(2, VOCAB, n).astype(np.int32)


async def _load(
    client: EngineClient, engine: psutil.Process, at_once: int, turns: int, *, cold: bool
) -> Measured:
    random = np.random.default_rng(0)
    tokens = cached = prompted = 0

    async def conversation() -> None:
        nonlocal tokens, cached, prompted
        ids = _words(random, 60)
        for _ in range(turns):
            if cold:
                ids = _words(random, 150)
            g = await client.generate(
                ids, rid=new_rid(), new_tokens_max=NEW_TOKENS, temperature=1.0, timeout_s=120
            )
            tokens, cached, prompted = (
                tokens + len(g.output_ids),
                cached + (g.cached_tokens or 0),
                prompted + len(ids),
            )
            ids = np.concatenate([ids, g.output_ids, _words(random, 28)])
            if len(ids) > 250:
                ids = _words(random, 60)

    began, cpu = time.perf_counter(), sum(engine.cpu_times()[:2])
    await asyncio.gather(*(conversation() for _ in range(at_once)))
    seconds = time.perf_counter() - began
    cpu = sum(engine.cpu_times()[:2]) - cpu
    calls = at_once * turns
    return Measured(tokens / seconds, 1e3 * seconds / calls, 1e3 * cpu / calls, cached / prompted)


async def _overhead(url: str, at_once: int, calls: int) -> float:
    """Milliseconds of a call that computes next to nothing: one place, no new token."""
    body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            for _ in range(calls // at_once):
                async with session.post(url + "/generate", json=body) as answer:
                    await answer.read()

        await one()
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(at_once)))
        return 1e3 * (time.perf_counter() - began) / (calls // at_once * at_once)


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    holds = None if bound is None else value >= bound
    return {
        "id": f"engine.{name}", "what": what, "value": round(value, 3), "unit": unit, "bound": bound,
        "holds": holds, "command": COMMAND,
    }  # fmt: skip


async def _all(running: Running) -> list[dict[str, Any]]:
    rows, engine = [], psutil.Process(running.pid)
    async with EngineClient(running.url) as client:
        await _load(client, engine, 4, 3, cold=True)
        for at_once, turns in ((1, 60), (16, 30), (96, 24)):
            for cold in (False, True):
                m = await _load(client, engine, at_once, turns, cold=cold)
                name = f"{at_once}{'.cold' if cold else ''}"
                what = f"{at_once} calls at once, {m.cached_share:.0%} of prompt tokens held"
                bound = TOKENS_PER_S_MIN if name == "96" else None
                rows += [
                    _row(f"tokens.{name}", f"sampled, {what}", m.tokens_per_s, "tokens/s", bound=bound),
                    _row(f"call.{name}", f"wall time over calls, {what}", m.ms_per_call, "ms"),
                    _row(f"cpu.{name}", f"CPU time of the engine a call, {what}", m.cpu_ms_per_call, "ms"),
                ]
    ms = await _overhead(running.url, 64, 3200)
    rows.append(_row("overhead.64", "a call that samples nothing, client included, 64 at once", ms, "ms"))
    return rows


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    with tempfile.TemporaryDirectory() as name:
        model = make_tiny_model(
            Path(name), hidden=128, inner=256, heads=8, kv_heads=4, head_dim=32, vocab=VOCAB
        )
        with embedded_engine(model) as running:
            return asyncio.run(_all(running))


def main() -> None:
    for row in run():
        print(f"{row['id']:24} {row['value']:12,.3f} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
