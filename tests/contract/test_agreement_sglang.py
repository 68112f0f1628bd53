"""The trainer's log-probabilities of tokens that a real SGLang sampled, against those it gave them.

Both round to bfloat16 at the same places, and never the logits (--enable-fp32-lm-head): what is left is the
order in which sums are added up, one token at a time or a row at once, as a number falls this way or that.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from lake.config import Objective, Optimizer
from tests.support.sglang import Server
from trainer.backends.torch_backend import TorchBackend

pytestmark = pytest.mark.sglang

CALLS, NEW_TOKENS = 24, 32
NEAR = 0.02


def sample(url: str, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of a call at temperature 1."""
    body = {
        "input_ids": prompt,
        "return_logprob": True,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
    }
    reply = httpx.post(f"{url}/generate", json=body, timeout=600).raise_for_status().json()
    triples = reply["meta_info"]["output_token_logprobs"]
    return [token for _, token, _ in triples], [logprob for logprob, _, _ in triples]


@pytest.fixture(scope="module")
def sampled(sglang_server: Server) -> list[tuple[list[int], list[int], list[float]]]:
    """Prompt, sampled ids and mu of calls, some of which share what they begin with, and run side by side."""
    draw = np.random.default_rng(0)
    shared = draw.integers(2, 380, 40).tolist()
    prompts = [
        shared * (call % 2) + draw.integers(2, 380, int(draw.integers(1, 60))).tolist()
        for call in range(CALLS)
    ]
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda prompt: sample(sglang_server.url, prompt), prompts))
    return [(prompt, *reply) for prompt, reply in zip(prompts, replies, strict=True)]


def differences(server: Server, sampled: list[tuple[list[int], list[int], list[float]]], precision: str):
    """|pi - mu| of every sampled token."""
    backend = TorchBackend(
        server.model,
        optimizer=Optimizer(),
        objective=Objective(),
        precision=precision,  # type: ignore[arg-type]
    )
    found = []
    for prompt, ids, mu in sampled:
        pi = backend.score(np.array(prompt + ids))[len(prompt) - 1 :]
        found.append(np.abs(pi.astype(np.float64) - mu))
    return np.concatenate(found)


def test_in_bfloat16_trainer_and_engine_agree(sglang_server: Server, sampled) -> None:
    found = differences(sglang_server, sampled, "bfloat16")
    assert len(found) == CALLS * NEW_TOKENS
    told = f"median {np.median(found):.5f}, p99 {np.quantile(found, 0.99):.5f}, largest {found.max():.5f}"
    assert found.max() <= NEAR, told
    assert np.median(found) <= NEAR / 20, told


def test_the_rest_is_rounding_which_float32_does_not_imitate(sglang_server: Server, sampled) -> None:
    short, wide = (differences(sglang_server, sampled, precision) for precision in ("bfloat16", "float32"))
    assert short.mean() < wide.mean() / 3
    assert np.quantile(wide, 0.99) > NEAR
