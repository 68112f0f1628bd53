"""New weights from a folder: embedded engine and real SGLang."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ingest.engines.client import EngineRefused
from lake.events import VersionSpan
from tests.support.contract_engine import CALLS_MAX, asked, body, busy, near, own, post, prompt, theirs
from tests.support.random_model import make_tiny_model


@pytest.fixture
async def start(engine, client):
    """A version that somebody gave: SGLang begins with one that is called `default`."""
    info = await client.model_info()
    if info.version is None:
        await client.update_weights(str(engine.model), 1)
    return (await client.model_info()).version


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_an_update_during_a_call_shows_in_its_spans(engine, client, start, mode):
    call = asyncio.create_task(client.generate(prompt(20, 1), **asked(engine.long)))
    await busy(client, 1)
    await client.pause(mode)
    await client.update_weights(str(engine.model_2), start + 1, flush_cache=mode != "in_place")
    await client.resume()
    g = await call
    old, new = g.spans
    assert (old.version, old.start, new.version, new.end) == (start, 0, start + 1, len(g.output_ids))
    assert old.end == new.start > 0
    assert (g.weight_version, (await client.model_info()).version) == (start + 1, start + 1)
    before, after = g.output_ids[: old.end], g.output_ids[old.end :]
    near(engine, engine.model, prompt(20, 1), before, g.output_logprobs[: old.end])
    if mode == "retract":  # else keys and values of the old weights stay in use
        known = np.concatenate([prompt(20, 1), before])
        near(engine, engine.model_2, known, after, g.output_logprobs[old.end :])
    await client.flush()
    g = await client.generate(prompt(20, 1), **asked(9))
    near(engine, engine.model_2, prompt(20, 1), g.output_ids, g.output_logprobs)
    assert g.spans == (VersionSpan(start + 1, 0, len(g.output_ids)),)


@theirs
async def test_sglang_cannot_flush_what_stands_still_and_says_that_it_failed(engine, client, start):
    """It has taken the weights nevertheless: `update_weights` says to give flush_cache=False then."""
    call = asyncio.create_task(client.generate(prompt(20, 1), **asked(engine.long)))
    await busy(client, 1)
    await client.pause("in_place")
    with pytest.raises(EngineRefused):
        await client.update_weights(str(engine.model_2), start + 1)
    assert (await client.model_info()).version == start
    await client.resume()
    assert [s.version for s in (await call).spans] == [start, start + 1]
    await client.flush()
    await client.update_weights(str(engine.model), start + 2)


@own
async def test_an_update_needs_no_pause(engine, http, client, start):
    requests = [body(20, i, max_new_tokens=600) for i in range(CALLS_MAX)]
    calls = [asyncio.create_task(post(http, "/generate", request)) for request in requests]
    await busy(client, CALLS_MAX)
    await client.update_weights(str(engine.model_2), start + 1)
    await client.update_weights(str(engine.model), start + 2)
    for _, answer in await asyncio.gather(*calls):
        spans = answer["meta_info"]["weight_versions"]
        assert [s["version"] for s in spans] == [str(start), str(start + 1), str(start + 2)]
        assert [s["start"] for s in spans] == [0, *(s["end"] for s in spans[:-1])]
        assert answer["meta_info"]["finish_reason"]["type"] == "length"


@theirs
async def test_without_a_pause_an_update_of_sglang_waits_for_the_calls_that_run(engine, client, start):
    call = asyncio.create_task(client.generate(prompt(20, 1), **asked(engine.long)))
    await busy(client, 1)
    await client.update_weights(str(engine.model_2), start + 1, flush_cache=False)
    assert (await client.model_info()).version == start + 1
    assert (await call).spans == (VersionSpan(start, 0, engine.long),)


def faulty(engine, folder, fault: str) -> str:
    """A folder of weights that cannot be served."""
    if fault == "no folder":
        return str(folder / "nothing")
    shutil.copytree(engine.model_2, folder / "next")
    file = folder / "next" / "model.safetensors"
    if fault == "no file":
        file.unlink()
    elif fault == "torn file":
        file.write_bytes(file.read_bytes()[:-100])
    elif fault == "other shape":
        make_tiny_model(folder / "next", hidden=96)
    return str(folder / "next")


@pytest.mark.parametrize("fault", ["no folder", "no file", "torn file", "other shape"])
async def test_a_failed_update_changes_nothing_and_is_said(engine, client, start, tmp_path, fault):
    """Of the last two SGLang would die: to go back it loads the same folder again.  Our client does not tell
    it of them."""
    with pytest.raises(EngineRefused):
        await client.update_weights(faulty(engine, tmp_path, fault), start + 1)
    info = await client.model_info()
    assert (info.version, info.model_path) == (start, str(engine.model))
    g = await client.generate(prompt(20, 1), **asked(5))
    assert g.spans == (VersionSpan(start, 0, len(g.output_ids)),)
    near(engine, engine.model, prompt(20, 1), g.output_ids, g.output_logprobs)


@own
@pytest.mark.parametrize("fault", ["torn file", "other shape"])
async def test_the_embedded_engine_refuses_faulty_weights_itself(engine, http, client, tmp_path, fault):
    before = await client.model_info()
    data = {"model_path": faulty(engine, tmp_path, fault), "weight_version": "99"}
    status, answer = await post(http, "/update_weights_from_disk", data)
    assert (status, answer["success"]) == (400, False)
    assert f"goes on with version {before.version}" in answer["message"]
    assert await client.model_info() == before


@own
@pytest.mark.parametrize("version", [None, "v2", "-1", 5])
async def test_an_update_names_its_version(engine, http, client, version):
    """SGLang takes any text for a version, and none as well."""
    before = await client.model_info()
    data = {"model_path": str(engine.model_2)} | ({} if version is None else {"weight_version": version})
    status, answer = await post(http, "/update_weights_from_disk", data)
    assert (status, answer["success"]) == (400, False)
    assert f"goes on with version {before.version}" in answer["message"]
    assert await client.model_info() == before


async def test_a_file_that_lacks_a_tensor(engine, http, client, start, tmp_path):
    """The embedded engine refuses it.  SGLang takes what there is, and keeps the rest of the old weights: our
    client does not tell it."""
    folder = tmp_path / "next"
    shutil.copytree(engine.model_2, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineRefused, match=r"model\.norm\.weight has shape None, \(64,\) is served"):
        await client.update_weights(str(folder), start + 1)
    assert (await client.model_info()).version == start
    data = {"model_path": str(folder), "weight_version": str(start + 1)}
    status, answer = await post(http, "/update_weights_from_disk", data)
    assert (status, answer["success"]) == ((400, False) if engine.kind == "embedded" else (200, True))
    await client.update_weights(str(engine.model), start + 2)
