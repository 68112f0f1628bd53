"""The model's thread and the process around it: what happens when something breaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from ingest.engines.embedded.batch import Batch, Call
from ingest.engines.embedded.weights import read_shape, read_weights
from ingest.engines.embedded.worker import Worker, WorkerStopped
from tests.support.engines import ROOT, free_port
from tests.support.random_model import make_tiny_model


@pytest.fixture
def batch(tmp_path) -> Batch:
    make_tiny_model(tmp_path, vocab=40)
    weights = read_weights(tmp_path, read_shape(tmp_path))
    return Batch(weights, version=0, slots=4, places=32, calls_max=2)


async def test_an_error_in_a_step_is_told_and_ends_the_thread(batch, monkeypatch, capsys):
    died, delivered = asyncio.Event(), []
    loop = asyncio.get_running_loop()
    worker = Worker(batch, loop=loop, deliver=delivered.extend, on_death=died.set)
    worker.start()
    assert worker.alive
    with pytest.raises(ZeroDivisionError):
        await worker.command(lambda _: 1 // 0)  # a command's error is its caller's
    assert await worker.command(lambda b: b.version) == 0

    def broken() -> list[Call]:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(batch, "step", broken)
    worker.add(Call(rid="a", prompt=np.ones(3, np.int32), new_tokens_max=2))
    await asyncio.wait_for(died.wait(), 10)
    worker.stop(10)
    assert not worker.alive
    assert "no such luck" in capsys.readouterr().err
    with pytest.raises(WorkerStopped):
        await worker.command(lambda b: b.version)


async def test_a_paused_worker_computes_nothing_but_answers(batch):
    delivered = []
    worker = Worker(batch, loop=asyncio.get_running_loop(), deliver=delivered.extend, on_death=lambda: None)
    worker.paused = True
    worker.start()
    worker.add(Call(rid="a", prompt=np.ones(3, np.int32), new_tokens_max=2))
    await asyncio.sleep(0.1)
    assert await worker.command(lambda b: len(b.waiting)) == 1
    worker.paused = False
    await worker.command(lambda _: None)
    async with asyncio.timeout(10):
        while not delivered:
            await asyncio.sleep(0.01)
    worker.stop(10)
    assert delivered[0].finish == "length"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "config.json is missing"),
        (["--concurrent-calls", "0"], "1 to 1024 is needed"),
    ],
)
def test_wrong_use_ends_with_2_and_a_sentence(tmp_path, options, sentence):
    command = [sys.executable, "-m", "ingest.engines.embedded", "--model", str(tmp_path), *options]
    ended = subprocess.run(
        [*command, "--port", str(free_port())], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert sentence in ended.stderr
