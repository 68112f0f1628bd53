"""What an engine must do, asked over HTTP.

The suite knows a URL, two folders of weights of one shape, and the size of the context; the embedded
engine is started here, SGLang can take its place: set HEADRACE_ENGINE_URL to an engine that serves
HEADRACE_ENGINE_MODEL (of which HEADRACE_ENGINE_MODEL_2 is another version, the same shape).  What only
the embedded engine promises is marked `own`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import pytest
import torch

from ingest.engines.client import EngineClient, EngineRefused, EngineUnavailable, new_rid
from lake.events import VersionSpan
from tests.support.engines import embedded_engine
from tests.support.random_model import EOS, make_tiny_model
from tests.support.reference_decoder import reference_logits

CONTEXT = 2048
CALLS_MAX = 8
QUEUE_MAX = 4
own = pytest.mark.skipif("HEADRACE_ENGINE_URL" in os.environ, reason="the embedded engine's own promise")


class Engine(NamedTuple):
    url: str
    model: Path
    model_2: Path
    vocab: int
    tolerance: float  # of log-probabilities


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    url = os.environ.get("HEADRACE_ENGINE_URL")
    if url:
        models = [Path(os.environ[f"HEADRACE_ENGINE_MODEL{n}"]) for n in ("", "_2")]
        config = json.loads((models[0] / "config.json").read_text())
        yield Engine(url, *models, config["vocab_size"], 0.02)
        return
    models = [make_tiny_model(tmp_path_factory.mktemp("m"), seed=s, sharpness=4.0) for s in (0, 1)]
    options = ["--context-tokens", str(CONTEXT), "--concurrent-calls", str(CALLS_MAX)]
    with embedded_engine(models[0], *options, "--queue-calls", str(QUEUE_MAX)) as running:
        yield Engine(running.url, *models, 388, 1e-4)


@pytest.fixture
async def client(engine):
    client = EngineClient(engine.url, vocab_size=engine.vocab)
    yield client
    await client.resume()
    await client.close()


@pytest.fixture
async def http(engine):
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


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


async def busy(client: EngineClient, calls: int) -> None:
    """Until so many calls run."""
    async with asyncio.timeout(30):
        while (await client.loads())["loads"][0]["num_running_reqs"] < calls:
            await asyncio.sleep(0.01)


def expected_logprobs(model: Path, prompt: np.ndarray, output: np.ndarray, temperature: float) -> np.ndarray:
    ids, n = [*prompt.tolist(), *output.tolist()], len(output)
    logp = (reference_logits(model, ids)[-n - 1 : -1] / temperature).log_softmax(-1)
    return logp.gather(-1, torch.tensor(ids[-n:])[:, None])[:, 0].numpy()


# ------------------------------------------------------------------------------------------ generation
@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_ids_log_probabilities_and_versions(engine, client, temperature):
    version = int((await client.model_info())["weight_version"])
    ids = prompt(30, 1)
    g = await client.generate(ids, rid=new_rid(), new_tokens_max=12, temperature=temperature, timeout_s=30)
    assert g.output_ids.dtype == np.int32
    assert g.output_logprobs.dtype == np.float32
    assert g.spans == (VersionSpan(version, 0, len(g.output_ids)),)
    assert g.weight_version == version
    expected = expected_logprobs(engine.model, ids, g.output_ids, temperature)
    np.testing.assert_allclose(g.output_logprobs, expected, atol=engine.tolerance)


async def test_filters_do_not_change_log_probabilities(engine, client):
    ids = prompt(30, 2)
    g = await client.generate(
        ids, rid=new_rid(), new_tokens_max=12, temperature=1.3, top_p=0.5, top_k=4, timeout_s=30
    )
    expected = expected_logprobs(engine.model, ids, g.output_ids, 1.3)
    np.testing.assert_allclose(g.output_logprobs, expected, atol=engine.tolerance)


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
    assert meta["e2e_latency"] > 0
    assert isinstance(meta["weight_version"], str)


async def test_a_stop_token_is_the_last_id_and_not_in_the_text(http):
    _, free = await post(http, "/generate", body(20, 3, temperature=0.0, max_new_tokens=6))
    stop = free["output_ids"][3]
    cut_at = free["output_ids"].index(stop) + 1
    request = body(20, 3, temperature=0.0, max_new_tokens=6, stop_token_ids=[stop], ignore_eos=False)
    _, cut = await post(http, "/generate", request)
    assert cut["output_ids"] == free["output_ids"][:cut_at]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    request["sampling_params"]["no_stop_trim"] = True
    request["rid"] = new_rid()
    _, untrimmed = await post(http, "/generate", request)
    assert untrimmed["text"].startswith(cut["text"])


async def test_no_new_tokens(http):
    _, answer = await post(http, "/generate", body(20, 4, max_new_tokens=0))
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"]["type"] == "length"


async def test_a_prefix_is_reported_and_one_token_always_computed(client, engine):
    async def call(ids: np.ndarray):
        return await client.generate(ids, rid=new_rid(), new_tokens_max=6, temperature=1.0, timeout_s=30)

    await client.flush()
    ids = prompt(200, 5)
    first = await call(ids)
    again = await call(ids)
    longer = np.concatenate([ids, first.output_ids, prompt(20, 6)])
    third = await call(longer)
    assert (first.cached_tokens, again.cached_tokens) == (0, 199)
    assert 200 <= third.cached_tokens <= 205
    expected = expected_logprobs(engine.model, longer, third.output_ids, 1.0)
    np.testing.assert_allclose(third.output_logprobs, expected, atol=engine.tolerance)
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
    np.testing.assert_allclose([t[0] for t in got[1:]], expected, atol=engine.tolerance)
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
    answers = await asyncio.gather(
        *(client.generate(p, rid=new_rid(), new_tokens_max=9, temperature=1.0, timeout_s=60) for p in prompts)
    )
    for ids, g in zip(prompts, answers, strict=True):
        expected = expected_logprobs(engine.model, ids, g.output_ids, 1.0)
        np.testing.assert_allclose(g.output_logprobs, expected, atol=engine.tolerance)


@own
async def test_a_seed_gives_the_same_tokens_in_any_company(http):
    _, alone = await post(http, "/generate", body(20, 9, sampling_seed=5, temperature=3.0))
    others = [post(http, "/generate", body(10 + i, i, sampling_seed=i)) for i in range(CALLS_MAX)]
    crowd = await asyncio.gather(
        post(http, "/generate", body(20, 9, sampling_seed=5, temperature=3.0)), *others
    )
    _, other = await post(http, "/generate", body(20, 9, sampling_seed=6, temperature=3.0))
    assert crowd[0][1]["output_ids"] == alone["output_ids"] != other["output_ids"]


# -------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling_params": {"max_new_token": 3}}, ["max_new_token"]),
        ({"input_ids": [5] * (CONTEXT + 50)}, [str(CONTEXT + 50), str(CONTEXT)]),
        ({"input_ids": [5] * 100, "sampling_params": {"max_new_tokens": CONTEXT}}, [str(CONTEXT)]),
        ({"sampling_params": {"temperature": -1.0}}, ["temperature"]),
        ({"sampling_params": {"top_p": 0.0}}, ["top_p"]),
        pytest.param({"input_ids": [5, 388]}, ["388"], marks=own),
        pytest.param({"input_ids": [5, -1]}, ["-1"], marks=own),
        pytest.param({"input_ids": [5, 2**70]}, ["input_ids"], marks=own),
        pytest.param({"input_ids": []}, ["input_ids"], marks=own),
        pytest.param({"input_ids": "abc"}, ["input_ids"], marks=own),
        pytest.param({"sampling_params": {"stop": ["x"]}}, ["stop_token_ids"], marks=own),
        pytest.param({"sampling_params": {"n": 2}}, ["n is 2"], marks=own),
        pytest.param({"rid": ""}, ["rid"], marks=own),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_by_name(http, change, words):
    status, answer = await post(http, "/generate", body(10, 0) | change)
    assert status == 400
    for word in words:
        assert word in json.dumps(answer)
    assert (await post(http, "/generate", body(10, 0)))[0] == 200


async def test_unknown_names_at_the_top_are_ignored(http):
    assert (await post(http, "/generate", body(10, 0) | {"priority": 3, "whatever": {}}))[0] == 200


async def test_a_body_that_is_not_json_is_refused(http):
    async with http.post("/generate", data=b"{") as answer:
        assert 400 <= answer.status < 500


async def test_an_id_in_flight_is_refused(http, client):
    rid = new_rid()
    first = asyncio.create_task(post(http, "/generate", body(20, 1, rid=rid, max_new_tokens=1500)))
    await busy(client, 1)
    status, answer = await post(http, "/generate", body(20, 2, rid=rid))
    assert status == 400
    assert "uplicate" in json.dumps(answer)
    await client.abort(rid)
    await first


@own
async def test_a_full_queue_is_refused_and_may_be_tried_again(http, client):
    calls = [
        asyncio.create_task(post(http, "/generate", body(20, i, max_new_tokens=1500)))
        for i in range(CALLS_MAX + QUEUE_MAX)
    ]
    await busy(client, CALLS_MAX)
    with pytest.raises(EngineUnavailable, match="--queue-calls"):
        await client.generate(prompt(5, 0), rid=new_rid(), new_tokens_max=1, temperature=1.0, timeout_s=30)
    await post(http, "/abort_request", {"abort_all": True})
    ends = [answer["meta_info"]["finish_reason"]["type"] for _, answer in await asyncio.gather(*calls)]
    assert ends == ["abort"] * (CALLS_MAX + QUEUE_MAX)
    await client.generate(prompt(5, 0), rid=new_rid(), new_tokens_max=1, temperature=1.0, timeout_s=30)


# ------------------------------------------------------------------------------------ abort and pauses
async def test_an_aborted_call_gives_what_it_has(http, client):
    rid = new_rid()
    call = asyncio.create_task(post(http, "/generate", body(20, 1, rid=rid, max_new_tokens=1900)))
    await busy(client, 1)
    await client.abort(rid)
    status, answer = await call
    meta = answer["meta_info"]
    assert status == 200
    assert meta["finish_reason"]["type"] == "abort"
    assert len(answer["output_ids"]) == len(meta["output_token_logprobs"]) < 1900
    await client.abort(new_rid())  # unknown: no error


async def test_a_client_that_hangs_up_ends_its_call(client):
    with pytest.raises(EngineUnavailable, match=r"within 0\.3 s"):
        await client.generate(
            prompt(20, 1), rid=new_rid(), new_tokens_max=1900, temperature=1.0, timeout_s=0.3
        )
    async with asyncio.timeout(20):
        while (await client.loads())["loads"][0]["num_running_reqs"]:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_a_pause_holds_new_calls_until_resumed(http, client, mode):
    running = asyncio.create_task(post(http, "/generate", body(20, 1, max_new_tokens=400)))
    await busy(client, 1)
    await client.pause(mode)
    assert not await client.ready()
    late = asyncio.create_task(post(http, "/generate", body(20, 2)))
    await asyncio.sleep(0.2)
    assert not late.done()
    assert running.done() == (mode == "abort")
    await client.resume()
    assert await client.ready()
    assert (await late)[1]["meta_info"]["finish_reason"]["type"] == "length"
    meta = (await running)[1]["meta_info"]
    assert meta["finish_reason"]["type"] == ("abort" if mode == "abort" else "length")
    assert meta["num_retractions"] == (mode == "retract")
    if mode != "abort":
        assert meta["completion_tokens"] == 400


@own
async def test_a_paused_engine_is_alive(http, client):
    await client.pause("in_place")
    for path, status in (("/health", 200), ("/health_generate", 200), ("/ready", 503)):
        async with http.get(path) as answer:
            assert answer.status == status
    assert (await post(http, "/pause_generation", {"mode": "sleep"}))[0] == 400


# --------------------------------------------------------------------------------------------- updates
async def test_an_update_during_a_call_shows_in_its_spans(engine, http, client):
    start = int((await client.model_info())["weight_version"])
    call = asyncio.create_task(post(http, "/generate", body(20, 1, max_new_tokens=1900)))
    await busy(client, 1)
    await client.pause("retract")
    await client.update_weights(str(engine.model_2), start + 1)
    await client.resume()
    meta = (await call)[1]["meta_info"]
    spans = [(int(s["version"]), s["start"], s["end"]) for s in meta["weight_versions"]]
    assert [s[0] for s in spans] == [start, start + 1]
    assert spans[0][1] == 0
    assert spans[0][2] == spans[1][1] > 0
    assert spans[1][2] == 1900
    assert meta["weight_version"] == str(start + 1)
    assert (await client.model_info())["weight_version"] == str(start + 1)
    g = await client.generate(prompt(20, 1), rid=new_rid(), new_tokens_max=9, temperature=1.0, timeout_s=30)
    expected = expected_logprobs(engine.model_2, prompt(20, 1), g.output_ids, 1.0)
    np.testing.assert_allclose(g.output_logprobs, expected, atol=engine.tolerance)
    await client.update_weights(str(engine.model), start + 2)


@own
async def test_an_update_needs_no_pause(engine, http, client):
    start = int((await client.model_info())["weight_version"])
    requests = [body(20, i, max_new_tokens=1500) for i in range(CALLS_MAX)]
    calls = [asyncio.create_task(post(http, "/generate", request)) for request in requests]
    await busy(client, CALLS_MAX)
    await client.update_weights(str(engine.model_2), start + 1)
    await client.update_weights(str(engine.model), start + 2)
    for _, answer in await asyncio.gather(*calls):
        spans = answer["meta_info"]["weight_versions"]
        assert [s["version"] for s in spans] == [str(start), str(start + 1), str(start + 2)]
        assert [s["start"] for s in spans] == [0, *(s["end"] for s in spans[:-1])]
        assert answer["meta_info"]["finish_reason"]["type"] == "length"


@own
@pytest.mark.parametrize("fault", ["no file", "torn file", "other shape", "no version", "not a number"])
async def test_a_failed_update_changes_nothing(engine, http, client, tmp_path, fault):
    before = await client.model_info()
    folder, version = tmp_path / "next", "99"
    shutil.copytree(engine.model_2, folder)
    file = folder / "model.safetensors"
    if fault == "no file":
        file.unlink()
    elif fault == "torn file":
        file.write_bytes(file.read_bytes()[:-100])
    elif fault == "other shape":
        make_tiny_model(folder, layers=1)
    elif fault == "not a number":
        version = "v2"
    data = {"model_path": str(folder)} | ({} if fault == "no version" else {"weight_version": version})
    status, answer = await post(http, "/update_weights_from_disk", data)
    assert (status, answer["success"]) == (400, False)
    assert f"goes on with version {before['weight_version']}" in answer["message"]
    assert await client.model_info() == before
    if fault != "no version":
        with pytest.raises(EngineRefused):
            await client._control("/update_weights_from_disk", data)
    g = await client.generate(prompt(20, 1), rid=new_rid(), new_tokens_max=5, temperature=1.0, timeout_s=30)
    expected = expected_logprobs(engine.model, prompt(20, 1), g.output_ids, 1.0)
    np.testing.assert_allclose(g.output_logprobs, expected, atol=engine.tolerance)


async def test_flush_is_refused_while_calls_run(http, client):
    rid = new_rid()
    call = asyncio.create_task(post(http, "/generate", body(20, 1, rid=rid, max_new_tokens=1900)))
    await busy(client, 1)
    with pytest.raises(EngineRefused, match="Flush"):
        await client.flush()
    await client.abort(rid)
    await call
    async with http.get("/flush_cache") as answer:
        assert answer.status == 200


# ----------------------------------------------------------------------------------------------- state
async def test_state(engine, http, client):
    load = (await client.loads())["loads"][0]
    assert load["num_running_reqs"] == 0
    assert load["max_running_requests"] >= 1
    for path in ("/model_info", "/get_model_info"):
        async with http.get(path) as answer:
            assert (await answer.json())["model_path"]
    for path in ("/server_info", "/get_server_info", "/health_generate"):
        async with http.get(path) as answer:
            assert answer.status == 200


# --------------------------------------------------------------------------- processes of their own
@own
async def test_a_key_is_asked_for(tmp_path):
    model, ids = make_tiny_model(tmp_path), np.array([EOS], np.int32)
    options = ["--api-key", "secret", "--weight-version", "7", "--context-tokens", "64"]
    with embedded_engine(model, *options) as (url, _):
        for key in (None, "wrong"):
            async with EngineClient(url, api_key=key) as client:
                with pytest.raises(EngineRefused, match="API key"):
                    await client.model_info()
        async with EngineClient(url, api_key="secret") as client:
            assert (await client.model_info())["weight_version"] == "7"
            g = await client.generate(ids, rid=new_rid(), new_tokens_max=4, temperature=1.0, timeout_s=30)
            assert g.weight_version == 7
    async with EngineClient(url) as client:
        assert not await client.ready()
        with pytest.raises(EngineUnavailable):
            await client.model_info()
