"""The proxy over real HTTP, in front of a scripted engine: what its tests share."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from lake.log import open_log
from tests.support.running_proxy import running_proxy
from tests.support.scripted_engine import Say, ScriptedEngine
from tests.support.tiny_model import write_model_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def log(tmp_path):
    log = open_log(f"sqlite://{tmp_path}/log.db")
    yield log
    log.close()


class Script:
    """What the engine says next; the last one again and again."""

    def __init__(self):
        self.says = [Say("yes")]

    def __call__(self, prompt):
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]


@pytest.fixture
def script():
    return Script()


@pytest.fixture
async def engine(model, script):
    async with ScriptedEngine(Tokenizer.from_file(str(model / "tokenizer.json")), script) as engine:
        yield engine


@pytest.fixture
async def proxy(log, model, engine):
    async with running_proxy(log, model, engine.url) as proxy:
        yield proxy
