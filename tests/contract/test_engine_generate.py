"""What an engine's `/generate` must do, asked over HTTP of the embedded engine and of a real SGLang."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from ingest.engines.client import EngineClient
from lake.events import VersionSpan
from tests.support.contract_engine import CALLS_MAX, QUEUE_MAX, asked, body, near, own, post, prompt
from tests.support.reference_decoder import reference_logits


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_ids_log_probabilities_and_versions(engine, client, temperature):
    version = (await client.model_info()).version  # None: nobody gave SGLang one yet
    ids = prompt(30, 1)
    g = await client.generate(ids, **asked(12, temperature))
    assert g.output_ids.dtype == np.int32
    assert g.output_logprobs.dtype == np.float32
    assert g.spans == (VersionSpan(version, 0, len(g.output_ids)),)
    assert (g.weight_version, g.engine) == (version, engine.url)
    near(engine, engine.model, ids, g.output_ids, g.output_logprobs, temperature=temperature)


async def test_filters_do_not_change_log_probabilities(engine, client):
    ids = prompt(30, 2)
    g = await client.generate(ids, **asked(12, 1.3), top_p=0.5, top_k=4)
    near(engine, engine.model, ids, g.output_ids, g.output_logprobs, temperature=1.3)


async def test_the_shape_of_an_answer(http):
    status, answer = await post(http, "/generate", body(20, rid="f" * 32))
    meta = answer["meta_info"]
    assert status == 200
    assert isinstance(answer["text"], str)
    assert meta["id"] == "f" * 32
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (20, 8)
    assert meta["output_token_logprobs_length"] == len(meta["output_token_logprobs"]) == 8
    assert [t[1] for t in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["input_token_logprobs"] == []
    assert meta["e2e_latency"] > 0
    assert isinstance(meta["weight_version"], str)
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 8}]


async def test_a_stop_token_is_the_last_id_and_not_in_the_text(http):
    _, free = await post(http, "/generate", body(20, 3, temperature=0.0, max_new_tokens=6))
    stop = free["output_ids"][3]
    cut_at = free["output_ids"].index(stop) + 1
    request = body(20, 3, temperature=0.0, max_new_tokens=6, stop_token_ids=[stop], ignore_eos=False)
    _, cut = await post(http, "/generate", request)
    assert cut["output_ids"] == free["output_ids"][:cut_at]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    request["sampling_params"]["no_stop_trim"] = True
    _, untrimmed = await post(http, "/generate", request | {"rid": "e" * 32})
    assert untrimmed["output_ids"] == cut["output_ids"]
    assert untrimmed["text"].startswith(cut["text"])


async def test_a_stop_token_in_the_last_permitted_place_is_a_stop(http, client):
    _, free = await post(http, "/generate", body(20, 3, temperature=0.0, max_new_tokens=4))
    stop = free["output_ids"][-1]
    most = free["output_ids"].index(stop) + 1
    g = await client.generate(prompt(20, 3), **asked(most, 0.0), stop_token_ids=[stop])
    assert (g.finish_reason, g.output_ids.tolist()) == ("stop", free["output_ids"][:most])


async def test_no_new_tokens(http, client):
    _, answer = await post(http, "/generate", body(20, 4, max_new_tokens=0))
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"]["type"] == "length"
    g = await client.generate(prompt(20, 4), **asked(0))
    assert (len(g.output_ids), len(g.output_logprobs), g.spans, g.finish_reason) == (0, 0, (), "length")


async def test_a_prefix_is_reported_and_one_token_always_computed(client, engine):
    async def call(ids: np.ndarray):
        return await client.generate(ids, **asked(6))

    await client.flush()
    ids = prompt(200, 5)
    first = await call(ids)
    again = await call(ids)
    longer = np.concatenate([ids, first.output_ids, prompt(20, 6)])
    third = await call(longer)
    assert (first.cached_tokens, again.cached_tokens) == (0, 199)
    assert 200 <= third.cached_tokens <= 205
    near(engine, engine.model, longer, third.output_ids, third.output_logprobs)
    await client.flush()
    assert (await call(ids)).cached_tokens == 0


async def test_prompt_log_probabilities_from_a_place_on(http, engine):
    request = body(64, 7, max_new_tokens=1) | {"logprob_start_len": 10}
    _, answer = await post(http, "/generate", request)
    got = answer["meta_info"]["input_token_logprobs"]
    assert len(got) == 54
    assert got[0][0] is None
    assert [t[1] for t in got] == request["input_ids"][10:]
    logp = reference_logits(engine.model, request["input_ids"]).log_softmax(-1)
    expected = [float(logp[i - 1, request["input_ids"][i]]) for i in range(11, 64)]
    rough = engine.tolerance / 10  # of words that are not likely at all
    np.testing.assert_allclose([t[0] for t in got[1:]], expected, atol=engine.tolerance, rtol=rough)
    status, _ = await post(http, "/generate", body(64, 7) | {"logprob_start_len": 70})
    assert status == 400


async def test_a_stream_is_cumulative_and_ends_with_done(http):
    async with http.post("/generate", json=body(20, 8, max_new_tokens=10) | {"stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = [e.removeprefix("data: ") for e in (await answer.text()).strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    shown = [json.loads(e) for e in events[:-1]]
    final = shown[-1]
    assert final["meta_info"]["finish_reason"]["type"] == "length"
    assert len(final["output_ids"]) == 10
    for part in shown:
        n = len(part["output_ids"])
        assert part["output_ids"] == final["output_ids"][:n]
        assert len(part["meta_info"]["output_token_logprobs"]) == n
        assert (part["meta_info"]["finish_reason"] is None) == (part is not final)
    sizes = [len(part["output_ids"]) for part in shown]
    assert sizes == sorted(sizes)


async def test_many_calls_at_once_are_each_their_own(engine, client):
    prompts = [prompt(5 + 7 * i, i) for i in range(CALLS_MAX + QUEUE_MAX)]
    answers = await asyncio.gather(*(client.generate(p, **asked(9)) for p in prompts))
    for ids, g in zip(prompts, answers, strict=True):
        near(engine, engine.model, ids, g.output_ids, g.output_logprobs)


@own
async def test_a_seed_gives_the_same_tokens_in_any_company(http):
    """SGLang takes `sampling_seed`, and keeps to it only with --enable-deterministic-inference (GPU)."""
    _, alone = await post(http, "/generate", body(20, 9, sampling_seed=5, temperature=3.0))
    others = [post(http, "/generate", body(10 + i, i, sampling_seed=i)) for i in range(CALLS_MAX)]
    crowd = await asyncio.gather(
        post(http, "/generate", body(20, 9, sampling_seed=5, temperature=3.0)), *others
    )
    _, other = await post(http, "/generate", body(20, 9, sampling_seed=6, temperature=3.0))
    assert crowd[0][1]["output_ids"] == alone["output_ids"] != other["output_ids"]


async def test_the_client_learns_the_vocabulary_by_itself(engine):
    """The embedded engine tells; of SGLang the folder is read, since the two share a file system here."""
    async with EngineClient(engine.url) as client:
        assert client.vocab_size is None
        g = await client.generate(prompt(20, 1), **asked(3))
        assert client.vocab_size == engine.vocab > g.output_ids.max()
