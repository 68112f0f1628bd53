"""The engines of the contract suite (test_engine_*.py): the embedded one, and a real SGLang."""

from __future__ import annotations

import aiohttp
import pytest

from ingest.engines.client import EngineClient
from tests.support.contract_engine import BOTH, CALLS_MAX, CONTEXT, QUEUE_MAX, Engine, busy, of_sglang, post
from tests.support.engines import embedded_engine
from tests.support.random_model import make_tiny_model


@pytest.fixture(scope="session")
def embedded(tmp_path_factory):
    models = [make_tiny_model(tmp_path_factory.mktemp("m"), seed=s, sharpness=4.0) for s in (0, 1)]
    options = ["--context-tokens", str(CONTEXT), "--concurrent-calls", str(CALLS_MAX)]
    with embedded_engine(models[0], *options, "--queue-calls", str(QUEUE_MAX)) as running:
        yield Engine("embedded", running.url, *models, 388, 1e-4, 800)


@pytest.fixture(scope="session", params=BOTH)
def engine(request):
    """Each is started when its first test comes."""
    if request.param == "embedded":
        return request.getfixturevalue("embedded")
    return of_sglang(request.getfixturevalue("sglang_server"))


@pytest.fixture
async def client(engine):
    """Leaves the engine as it found it: idle, not paused, on the weights of `model`."""
    async with EngineClient(engine.url, vocab_size=engine.vocab) as client:
        yield client
        async with aiohttp.ClientSession(engine.url) as http:
            await post(http, "/abort_request", {"abort_all": True})
        await client.resume()
        await busy(client, 0)
        await client.flush()
        info = await client.model_info()
        if info.model_path != str(engine.model):
            await client.update_weights(str(engine.model), (info.version or 0) + 1)


@pytest.fixture
async def http(engine):
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


@pytest.fixture
def keyed_engine(tmp_path):
    """The URL of an embedded engine that asks for the key `secret`, at version 7."""
    options = ["--api-key", "secret", "--weight-version", "7", "--context-tokens", "64"]
    with embedded_engine(make_tiny_model(tmp_path), *options) as running:
        yield running.url
