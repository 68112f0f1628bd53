"""What an engine does not take, and what our client does not send: embedded engine and real SGLang."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from ingest.engines.client import EngineClient, EngineRefused, EngineUnavailable, new_rid
from tests.support.contract_engine import (
    CALLS_MAX,
    CONTEXT,
    QUEUE_MAX,
    asked,
    body,
    busy,
    own,
    post,
    prompt,
    theirs,
)

INVALID = [
    ({"sampling_params": {"max_new_token": 3}}, ["max_new_token"]),
    ({"input_ids": [5] * (CONTEXT + 50)}, [str(CONTEXT + 50), str(CONTEXT)]),
    ({"input_ids": [5] * 100, "sampling_params": {"max_new_tokens": CONTEXT}}, [str(CONTEXT)]),
    ({"sampling_params": {"temperature": -1.0}}, ["temperature"]),
    ({"sampling_params": {"top_p": 0.0}}, ["top_p"]),
    ({"sampling_params": {"top_k": 0}}, ["top_k"]),
    ({"sampling_params": {"min_p": 2.0}}, ["min_p"]),
    ({"input_ids": []}, ["input_ids"]),
    ({"input_ids": "abc"}, ["input_ids"]),
    ({"input_ids": [5, 2**70]}, ["input_ids"]),
    ({"logprob_start_len": 70}, ["logprob_start_len", "70"]),
]


@pytest.mark.parametrize(("change", "words"), INVALID)
async def test_a_request_that_cannot_be_served_is_refused_by_name(http, change, words):
    status, answer = await post(http, "/generate", body(10, 0) | change)
    assert status == 400
    for word in words:
        assert word in json.dumps(answer)
    assert (await post(http, "/generate", body(10, 0)))[0] == 200


@own
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": [5, 388]}, ["388"]),
        ({"input_ids": [5, -1]}, ["-1"]),
        ({"sampling_params": {"stop": ["x"]}}, ["stop_token_ids"]),
        ({"sampling_params": {"n": 2}}, ["n is 2"]),
        ({"rid": ""}, ["rid"]),
    ],
)
async def test_what_the_embedded_engine_alone_refuses(http, change, words):
    """The first two kill SGLang, so they are not sent to one; the others it serves (the next test)."""
    await test_a_request_that_cannot_be_served_is_refused_by_name(http, change, words)


@theirs
async def test_what_sglang_alone_serves(http):
    status, stopped = await post(http, "/generate", body(10, 0, stop=["never"]))
    assert (status, len(stopped["output_ids"])) == (200, 8)
    request = body(10, 0) | {"sampling_params": {"n": 2, "max_new_tokens": 3}, "rid": None}
    status, two = await post(http, "/generate", request)
    assert (status, len(json.loads(two["text"]))) == (200, 2)
    assert (await post(http, "/generate", body(10, 0) | {"rid": ""}))[0] == 200


@pytest.mark.parametrize("ids", [[5, 388], [388], [5, -1], [2**31 - 1]])
async def test_no_id_outside_the_vocabulary_reaches_an_engine_through_our_client(engine, client, ids):
    """One of them kills SGLang: whoever has the client need not know the model for that to be seen."""
    async with EngineClient(engine.url) as knows_nothing:
        for each in (client, knows_nothing):
            with pytest.raises(EngineRefused, match="0 to 387 is possible"):
                await each.generate(np.array(ids, np.int32), **asked(2))
    g = await client.generate(np.array([5, engine.vocab - 1], np.int32), **asked(2))
    assert len(g.output_ids)
    assert await client.ready()


async def test_what_the_engine_refuses_is_final_for_the_client(client):
    with pytest.raises(EngineRefused, match=str(CONTEXT)):
        await client.generate(prompt(10, 0), **asked(CONTEXT))
    with pytest.raises(EngineRefused, match="top_p"):
        await client.generate(prompt(10, 0), **asked(1), top_p=0.0)
    with pytest.raises(EngineRefused, match="filled int32 vector"):
        await client.generate(np.zeros(0, np.int32), **asked(1))


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
    assert (await first)[1]["meta_info"]["finish_reason"]["type"] == "abort"


@own
async def test_a_full_queue_is_refused_and_may_be_tried_again(http, client):
    """SGLang has no bound unless --max-queued-requests sets one: twelve calls at once were answered above."""
    calls = [
        asyncio.create_task(post(http, "/generate", body(20, i, max_new_tokens=1500)))
        for i in range(CALLS_MAX + QUEUE_MAX)
    ]
    await busy(client, CALLS_MAX)
    with pytest.raises(EngineUnavailable, match="--queue-calls"):
        await client.generate(prompt(5, 0), **asked(1))
    await post(http, "/abort_request", {"abort_all": True})
    ends = [answer["meta_info"]["finish_reason"]["type"] for _, answer in await asyncio.gather(*calls)]
    assert ends == ["abort"] * (CALLS_MAX + QUEUE_MAX)
    await client.generate(prompt(5, 0), **asked(1))


async def test_routed_experts_of_a_dense_model_are_refused(http, client):
    """Both ignore the wish, whose name they do not know or whose option they were started without."""
    with pytest.raises(EngineRefused, match="whose shape is not known"):
        await client.generate(prompt(5, 0), **asked(1), routed_experts=True)
    status, answer = await post(http, "/generate", body(10, 0) | {"return_routed_experts": True})
    assert (status, answer["meta_info"].get("routed_experts")) == (200, None)


@own
async def test_a_key_is_asked_for(engine, keyed_engine):
    """SGLang does so with --api-key; its /ready and /metrics, like the embedded engine's, ask nobody."""
    for key in (None, "wrong"):
        async with EngineClient(keyed_engine, api_key=key) as client:
            assert await client.ready()
            await client.metrics()
            with pytest.raises(EngineRefused, match="API key"):
                await client.model_info()
            with pytest.raises(EngineRefused, match="API key"):
                await client.generate(np.array([1], np.int32), **asked(4))
    async with EngineClient(keyed_engine, api_key="secret") as client:
        assert (await client.model_info()).version == 7
        g = await client.generate(np.array([1], np.int32), **asked(4))
        assert g.weight_version == 7


async def test_nobody_listens():
    async with EngineClient("http://127.0.0.1:9") as client:
        assert await client.standing() == "silent"
        with pytest.raises(EngineUnavailable, match="3 times"):
            await client.model_info()
        with pytest.raises(EngineUnavailable):
            await client.generate(np.array([1], np.int32), **asked(4))
