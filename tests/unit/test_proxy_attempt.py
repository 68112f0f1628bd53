"""One attempt at an engine, and everybody leaving before, with, and after its answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from ingest.engines.answer import EngineRefused, EngineUnavailable, Generation
from ingest.proxy.calls import Caller
from ingest.proxy.neutral import Sampling
from tests.support.running_proxy import LIMITS


def generation(reason="stop"):
    return Generation(
        output_ids=np.array([7], np.int32),
        output_logprobs=np.array([-1.0], np.float32),
        finish_reason=reason,
        spans=(),
        cached_tokens=None,
        weight_version=0,
    )


class Engine:
    def __init__(self, on_abort):
        self.answer = asyncio.get_running_loop().create_future()
        self.asked = asyncio.Event()
        self.aborted, self._on_abort = 0, on_abort

    async def generate(self, ids, **_):
        self.asked.set()
        return await self.answer

    async def abort(self, rid):
        self.aborted += 1
        self._on_abort(self)


def call():
    loop = asyncio.get_running_loop()
    return SimpleNamespace(
        gone=loop.create_future(),
        parts=[],
        new_tokens_max=4,
        temperature=1.0,
        request=SimpleNamespace(sampling=Sampling()),
        prompt=SimpleNamespace(ids=np.array([1], np.int32)),
        execution=SimpleNamespace(
            identity=SimpleNamespace(execution_id="e"), renderer=SimpleNamespace(stop_ids=())
        ),
    )


async def attempt(happens, on_abort=lambda engine: None):
    """(what the attempt gave, how often the engine was told to abort); no callback may fail."""
    failed = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    engine, asked = Engine(on_abort), call()
    task = asyncio.create_task(Caller(engine, None, LIMITS, lambda: 0)._attempt(asked))
    await engine.asked.wait()
    happens(engine, asked)
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not failed
    return result, engine.aborted


def answers(engine, _=None):
    engine.answer.set_result(generation())


def leaves(_, asked):
    asked.gone.set_result(None)


@pytest.mark.parametrize("order", [(answers, leaves), (leaves, answers)])
async def test_an_answer_that_comes_as_everybody_leaves_is_kept(order):
    result, _ = await attempt(lambda engine, asked: [each(engine, asked) for each in order])
    assert result.output_ids.tolist() == [7]


async def test_nobody_left_nothing_is_aborted():
    result, aborted = await attempt(answers)
    assert (result.finish_reason, aborted) == ("stop", 0)


async def test_everybody_left_the_engine_is_told_and_what_it_gives_is_taken():
    result, aborted = await attempt(leaves, lambda engine: engine.answer.set_result(generation("abort")))
    assert (result.output_ids.tolist(), result.finish_reason, aborted) == ([7], "abort", 1)


@pytest.mark.parametrize("error", [EngineUnavailable("away"), EngineRefused("no")])
async def test_everybody_left_and_the_engine_fails(error):
    result, _ = await attempt(leaves, lambda engine: engine.answer.set_exception(error))
    assert (len(result.output_ids), result.finish_reason) == (0, "abort")


async def test_everybody_left_and_the_engine_cannot_be_told():
    def unreached(_):
        raise EngineUnavailable("away")

    result, aborted = await asyncio.wait_for(attempt(leaves, unreached), 1.0)
    assert (len(result.output_ids), result.finish_reason, aborted) == (0, "abort", 1)


async def test_an_engine_that_fails_while_somebody_waits_is_an_error():
    result, _ = await attempt(lambda engine, _: engine.answer.set_exception(EngineUnavailable("away")))
    assert isinstance(result, EngineUnavailable)
