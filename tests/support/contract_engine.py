"""What the contract suite of engines (tests/contract/test_engine_*.py) knows of an engine, and asks of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import pytest
import torch

from ingest.engines.client import EngineClient, new_rid
from tests.support import sglang
from tests.support.reference_decoder import reference_logits

CONTEXT = 2048
CALLS_MAX = 8
QUEUE_MAX = 4

SGLANG = pytest.param("sglang", marks=pytest.mark.sglang)
BOTH = ["embedded", SGLANG]
"""Every test holds for both, but for those of one: what the other does instead, a test of its own or the
docstring says."""
own = pytest.mark.parametrize("engine", ["embedded"], indirect=True)
theirs = pytest.mark.parametrize("engine", [SGLANG], indirect=True)


class Engine(NamedTuple):
    """`tolerance`: of one log-probability, in nats; a quarter of it for their mean.  `long`: tokens that take
    one to three seconds on a quiet machine, so that much can be done meanwhile."""

    kind: str
    url: str
    model: Path
    model_2: Path
    vocab: int
    tolerance: float
    long: int


def of_sglang(server: sglang.Server) -> Engine:
    """It computes in bfloat16: a logit of 16 to 32, as these sharp models have, is known to 1/16."""
    vocab = json.loads((server.model / "config.json").read_text())["vocab_size"]
    return Engine("sglang", server.url, server.model, server.model_2, vocab, 0.2, 400)


def prompt(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 250, n).astype(np.int32)


def body(n: int = 20, seed: int = 0, *, rid: str | None = None, **sampling) -> dict:
    sampling = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True} | sampling
    return {
        "rid": rid or new_rid(),
        "input_ids": prompt(n, seed).tolist(),
        "sampling_params": sampling,
        "return_logprob": True,
    }


async def post(http: aiohttp.ClientSession, path: str, data: dict) -> tuple[int, dict]:
    async with http.post(path, json=data) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else {"text": text}


def asked(n: int, temperature: float = 1.0, timeout_s: float = 120) -> dict:
    """What the client's `generate` needs besides the prompt."""
    return {"rid": new_rid(), "new_tokens_max": n, "temperature": temperature, "timeout_s": timeout_s}


async def busy(client: EngineClient, calls: int) -> None:
    """Until so many calls run; with none, until it is idle."""
    async with asyncio.timeout(60):
        while True:
            (load,) = await client.loads()
            if load.running >= calls if calls else load.running == load.waiting == 0:
                return
            await asyncio.sleep(0.01)


def near(engine: Engine, model: Path, prompt: np.ndarray, output, logprobs, *, temperature=1.0) -> None:
    """These log-probabilities are those of the model after the prompt."""
    ids, n = [*prompt.tolist(), *np.asarray(output).tolist()], len(output)
    logp = (reference_logits(model, ids)[-n - 1 : -1] / temperature).log_softmax(-1)
    expected = logp.gather(-1, torch.tensor(ids[-n:])[:, None])[:, 0].numpy()
    np.testing.assert_allclose(logprobs, expected, atol=engine.tolerance)
    assert np.abs(logprobs - expected).mean() <= engine.tolerance / 4
