"""The engine of a run: killed, started again, and never left on weights that are older than the log's."""

from __future__ import annotations

import json
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from lake.config import Config, Engine
from lake.layout import Run
from lake.processes import STARTS_MAX, ProcessDied, ask
from schedulers.engine import RunEngine
from tests.support.engines import free_port
from tests.support.random_model import make_tiny_model


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    for version in range(2):
        make_tiny_model(run.weights(version), seed=version)
    return run


@pytest.fixture
def engine(run: Run) -> Iterator[RunEngine]:
    config = Config(engine=Engine(concurrent_calls=4, context_tokens=64))
    run.config_file.write_bytes(msgspec.json.encode(config))
    engine = RunEngine(run, config, 0, free_port())
    engine.process.start()
    engine.process.wait_ready()
    yield engine
    engine.process.end(0.0)


def served(engine: RunEngine) -> int:
    try:
        return int(json.loads(ask(f"{engine.url}/model_info", 1.0))["weight_version"])
    except OSError:
        return -1


def look_until(engine: RunEngine, published: int, holds: Callable[[], bool], said: list[str]) -> int:
    """Look after the engine as a run does; how often it was started again meanwhile."""
    starts, until = 0, time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until, said
        starts += engine.look(published, said.append)
        time.sleep(0.02)
    return starts


def test_killed_it_serves_what_was_published_last(engine: RunEngine) -> None:
    said: list[str] = []
    engine.process.popen.send_signal(signal.SIGKILL)
    engine.process.popen.wait()
    assert look_until(engine, 1, lambda: served(engine) == 1, said) == 1
    assert [s.split(";")[0] for s in said] == ["engine was killed by SIGKILL"]


def test_what_an_engine_took_before_it_died_is_not_lost(engine: RunEngine) -> None:
    """The trainer's update was taken, the engine died, and the log named the version after the new start."""
    said: list[str] = []
    engine.process.popen.send_signal(signal.SIGKILL)
    engine.process.popen.wait()
    look_until(engine, 0, lambda: served(engine) == 0, said)
    assert look_until(engine, 1, lambda: served(engine) == 1, said) == 1
    assert said[1] == "engine serves version 0, published is 1; starting it again"
    time.sleep(0.2)
    assert not engine.look(1, said.append)
    assert len(said) == 2


def test_a_newer_version_than_the_logs_is_the_trainers_matter(run: Run, engine: RunEngine) -> None:
    """It is told to the engine first, to the log when it serves."""
    body = {"model_path": str(run.weights(1)), "weight_version": "2"}
    request = urllib.request.Request(
        f"{engine.url}/update_weights_from_disk",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    ask(request, 30.0)
    said: list[str] = []
    for _ in range(20):
        assert not engine.look(1, said.append)
        time.sleep(0.02)
    assert (served(engine), said) == (2, [])


def test_an_engine_that_no_longer_starts_is_given_up(run: Run, engine: RunEngine) -> None:
    said: list[str] = []
    shutil.rmtree(run.weights(1))
    engine.process.popen.send_signal(signal.SIGKILL)
    with pytest.raises(ProcessDied, match=f"started {STARTS_MAX} times and never got ready"):
        look_until(engine, 1, lambda: False, said)
    assert len(said) == STARTS_MAX
