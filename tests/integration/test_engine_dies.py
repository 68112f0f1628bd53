"""Engines that die, drain, pause and change their weights under a call: the harness sees one slow call.

Each at every point of a call's life and in all three dialects, streamed and not: one good answer, one
recorded call, nothing of the failed attempts in either.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from ingest.engines.cells import PoolLimits
from ingest.engines.client import EngineClient
from ingest.engines.pool import EnginePool
from lake.events import VersionSpan
from lake.log import open_log
from tests.support.driven_execution import whole
from tests.support.engines import embedded_engine, free_port
from tests.support.random_model import make_tiny_model
from tests.support.running_proxy import LIMITS, read_events, running_proxy, until
from tests.support.scripted_engine import POINTS, Say, ScriptedEngine
from tests.support.three_dialects import DIALECTS, PATHS, Said, body_of, said
from tests.support.tiny_model import make_tokenizer, write_model_folder

POOL = PoolLimits(probe_s=0.05, silent_s_max=0.3, pause_s_min=0.05, pause_s_max=0.2)
AWAY = {"chat": "engine_unavailable", "responses": "server_error", "anthropic": "overloaded_error"}
AWAY_WHOLE = AWAY | {"responses": "engine_unavailable"}
in_all_dialects = pytest.mark.parametrize("dialect", DIALECTS)
streamed_and_not = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def log(tmp_path):
    log = open_log(f"sqlite://{tmp_path}/log.db")
    yield log
    log.close()


class Engines:
    """Two scripted engines; `says` is what they say next, whichever is asked; then "yes"."""

    def __init__(self, model):
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.says: list[Say] = []
        self.all = [ScriptedEngine(tokenizer, self._say) for _ in range(2)]

    def _say(self, _):
        return self.says.pop(0) if self.says else Say("yes")

    @property
    def asked(self):
        return [asked for engine in self.all for asked in engine.asked]


@pytest.fixture
async def engines(model):
    engines = Engines(model)
    async with engines.all[0], engines.all[1]:
        yield engines


def pool(*urls):
    return EnginePool([EngineClient(url) for url in urls], POOL)


@pytest.fixture
async def proxy(log, model, engines):
    async with running_proxy(log, model, pool(*(e.url for e in engines.all))) as proxy:
        yield proxy


async def ask(proxy, dialect, stream, text="u", **more) -> tuple[int, Said]:
    """One request of execution e-1: status and what the reply says."""
    url = f"{proxy.url}/x/e-1/{PATHS[dialect]}"
    data = json.dumps(body_of(dialect, text, stream=stream, **more))
    async with proxy.session.post(url, data=data, headers=proxy.headers()) as reply:
        return reply.status, said(dialect, stream, await reply.read())


def check_one_good_answer(proxy, answer, text: str | None = "yes"):
    """A reply that is one answer, and the one call that the log holds: no trace of a retry in either."""
    status, found = answer
    assert (status, found.errors) == (200, [])
    assert len(found.answers) == 1
    assert text is None or found.answers == [text]
    (call,) = read_events(proxy.log, "calls")
    assert (call.call_id, call.retry_of, call.delivered, call.difference) == (0, None, True, "")
    assert call.finish_reason in ("stop", "length")
    assert call.n_output == len(call.output_logprobs) // 4
    assert read_events(proxy.log, "executions") == []
    return call


# -------------------------------------------------------------------------------------- killed
@in_all_dialects
@streamed_and_not
@pytest.mark.parametrize("point", POINTS)
async def test_an_engine_dies_and_the_other_answers(proxy, engines, point, dialect, stream):
    engines.says = [Say("half of another answer", fault=point)]
    call = check_one_good_answer(proxy, await ask(proxy, dialect, stream))
    assert len(engines.asked) == 2
    assert engines.asked[0].ids == engines.asked[1].ids == whole({0: call}, 0)[: len(engines.asked[0].ids)]


@pytest.mark.parametrize(
    ("point", "dialect", "stream"),
    [
        ("queued", "chat", True),
        ("prefill", "responses", False),
        ("decode", "anthropic", True),
        ("last-token", "responses", True),
        ("half-written", "chat", False),
        ("half-written", "anthropic", False),
    ],
)
async def test_a_process_that_is_killed_and_started_again(log, model, point, dialect, stream):
    """SIGKILL at the point; another process at the same port takes over."""
    port = free_port()
    async with running_proxy(log, model, pool(f"http://127.0.0.1:{port}")) as proxy:
        async with engine_process(model, port, "--stop-at", point) as process:
            call = asyncio.create_task(ask(proxy, dialect, stream))
            async with asyncio.timeout(30):
                assert await process.stdout.readline() == f"at {point}\n".encode()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            assert not call.done()
        async with engine_process(model, port):
            check_one_good_answer(proxy, await call, None)


@contextlib.asynccontextmanager
async def engine_process(model, port, *options):
    """A scripted engine as a process, once it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.scripted_engine", "--model", str(model), "--port", str(port),
        *options, stdout=asyncio.subprocess.PIPE, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()


async def test_the_embedded_engine_is_killed_while_it_decodes(log, tmp_path):
    model = write_model_folder(tmp_path / "m")
    make_tiny_model(model, vocab=512)
    make_tokenizer().save(str(model / "tokenizer.json"))
    port = free_port()
    limits = replace(LIMITS, context_tokens=2048)
    options = ("--context-tokens", "2048", "--concurrent-calls", "4")
    async with running_proxy(log, model, pool(f"http://127.0.0.1:{port}"), limits) as proxy:
        with embedded_engine(model, *options, port=port) as engine:
            call = asyncio.create_task(ask(proxy, "chat", True, max_tokens=1900))
            async with EngineClient(engine.url) as client, asyncio.timeout(60):
                while not (await client.loads())[0].running:
                    await asyncio.sleep(0.01)
            os.kill(engine.pid, signal.SIGKILL)
        assert not call.done()
        starting = embedded_engine(model, *options, port=port)
        await asyncio.to_thread(starting.__enter__)
        try:
            recorded = check_one_good_answer(proxy, await call, None)
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
        assert recorded.spans == (VersionSpan(0, 0, recorded.n_output),)


# ---------------------------------------------------------------------- drains, pauses, updates
@in_all_dialects
@streamed_and_not
async def test_an_engine_drains_and_the_other_answers(proxy, engines, dialect, stream):
    await ask(proxy, "chat", False, "before")
    home = next(engine for engine in engines.all if engine.asked)
    home.ready = 503
    await asyncio.sleep(0.2)
    status, found = await ask(proxy, dialect, stream)
    assert (status, found.answers) == (200, ["yes"])
    assert [len(engine.asked) for engine in engines.all if engine is home] == [1]


@in_all_dialects
async def test_an_engine_that_hangs_is_left_for_another(proxy, engines, dialect, monkeypatch):
    monkeypatch.setattr("ingest.engines.client.PROBE_TIMEOUT_S", 0.5)
    engines.says = [Say("never", fault="hang")]
    call = asyncio.create_task(ask(proxy, dialect, True))
    await until(lambda: engines.asked)
    hung = next(engine for engine in engines.all if engine.asked)
    hung.ready = 0
    check_one_good_answer(proxy, await call)
    assert len(engines.asked) == 2


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
@in_all_dialects
async def test_an_engine_pauses_for_new_weights(log, two_versions, mode, dialect):
    """Cases 26 and 27: no abort is seen, and spans tell which weights sampled what."""
    engine, (_, second), model = two_versions
    limits = replace(LIMITS, context_tokens=2048)
    async with (
        running_proxy(log, model, pool(engine.url), limits) as proxy,
        EngineClient(engine.url) as client,
    ):
        call = asyncio.create_task(ask(proxy, dialect, True, **most_tokens(dialect, 600)))
        async with asyncio.timeout(60):
            while not (await client.loads())[0].running:
                await asyncio.sleep(0.005)
        before = (await client.model_info()).version
        await client.pause(mode)
        await client.update_weights(str(second), before + 1, flush_cache=mode != "in_place")
        assert not call.done()
        await client.resume()
        recorded = check_one_good_answer(proxy, await call, None)
        versions = [span.version for span in recorded.spans]
        assert versions == [before, before + 1]
        assert recorded.spans[-1].end == recorded.n_output


def most_tokens(dialect, n):
    return {"max_output_tokens" if dialect == "responses" else "max_tokens": n}


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    """An embedded engine that runs, two folders of weights, and the folder that the proxy reads."""
    folders = [write_model_folder(tmp_path_factory.mktemp("m")) for _ in range(2)]
    for seed, folder in enumerate(folders):
        make_tiny_model(folder, vocab=512, seed=seed)
        make_tokenizer().save(str(folder / "tokenizer.json"))
    with embedded_engine(folders[0], "--context-tokens", "2048", "--concurrent-calls", "4") as engine:
        yield engine, folders, folders[0]


# ------------------------------------------------------------------------------------ away for long
@in_all_dialects
@streamed_and_not
async def test_engines_that_stay_away_are_said_in_the_dialects_own_words(
    log, model, engines, dialect, stream
):
    for engine in engines.all:
        await engine.__aexit__()
    limits = replace(LIMITS, engine_wait_s_max=0.5)
    async with running_proxy(log, model, pool(*(e.url for e in engines.all)), limits) as proxy:
        status, found = await ask(proxy, dialect, stream)
        assert (status, found.answers) == (200 if stream else 503, [])
        assert found.errors == [(AWAY if stream else AWAY_WHOLE)[dialect]]
        assert read_events(log, "calls") == []
        for engine in engines.all:
            await engine.__aenter__()
        check_one_good_answer(proxy, await ask(proxy, dialect, stream))


async def test_time_on_an_engine_that_worked_is_no_time_away(log, model, engines, monkeypatch):
    """A call fails, runs elsewhere for longer than the wait, fails again: it is tried again all the same."""
    monkeypatch.setattr("ingest.proxy.calls.WORKED_S", 0.5)
    hold = asyncio.Event()
    engines.says = [Say(fault="500"), Say(fault="drop", hold=hold), Say("yes")]
    limits = replace(LIMITS, engine_wait_s_max=0.5)
    async with running_proxy(log, model, pool(*(e.url for e in engines.all)), limits) as proxy:
        call = asyncio.create_task(ask(proxy, "chat", False))
        await until(lambda: len(engines.asked) == 2)
        await asyncio.sleep(0.7)
        hold.set()
        check_one_good_answer(proxy, await call)
