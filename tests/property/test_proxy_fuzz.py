"""Any request whatever: no 5xx, no exception, nothing of another execution, the right word for a wrong key.

The application is the real one over a real log, and lets go of states all the time, to make them again from
the log; the engine repeats the end of its prompt, so that whatever came into a prompt comes out again.  Some
executions hold secrets.  HEADRACE_FUZZ=10000 sends so many, under each of two chat templates.
No tool for OpenAPI: the dialects have no schema of ours, and what matters here, bodies that end anywhere,
keys of others and what stands in other executions, is not a matter of schemas.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ingest.engines.client import Generation
from ingest.identity import sign
from ingest.proxy.app import make_app
from ingest.proxy.rendering import Renderer
from lake.log import open_log
from tests.support.asgi import Got, Sent, living, send
from tests.support.driven_execution import whole
from tests.support.fuzzed_requests import BODIES, Fuzzed, fuzzed
from tests.support.running_proxy import LIMITS, SECRET, read_events
from tests.support.templates import template
from tests.support.three_dialects import DIALECTS, PATHS
from tests.support.tiny_model import TEMPLATE, write_model_folder

REQUESTS = int(os.environ.get("HEADRACE_FUZZ", "2000"))
AT_ONCE = 5
TEMPLATES = {"small": TEMPLATE, "Qwen3.5": template("qwen3_5_think")}
BODY_BYTES_MAX = 20_000
VICTIMS = [f"v-{k}" for k in range(6)]
NAMES = [*VICTIMS, *(f"a-{k}" for k in range(30))]
SECRETS = {name: f"{name}:{os.urandom(6).hex()}" for name in VICTIMS}
LIMITS_HERE = replace(LIMITS, body_bytes_max=BODY_BYTES_MAX, context_tokens=3000, state_bytes_max=300_000)


class Echo:
    """An engine that repeats the last tokens of its prompt: what stands in the prompt is seen."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    async def generate(self, input_ids, *, new_tokens_max, **_) -> Generation:
        await asyncio.sleep(0)
        ids = np.append(input_ids[-min(120, new_tokens_max) :], self.stop).astype(np.int32)[:new_tokens_max]
        return Generation(
            output_ids=ids, output_logprobs=np.full(len(ids), -0.5, np.float32),
            finish_reason="stop" if ids[-1] == self.stop else "length", spans=(), cached_tokens=0,
            weight_version=0,
        )  # fmt: skip

    async def abort(self, rid: str) -> None:
        """Nothing runs for long."""


class World:
    """The application in a loop of its own, with secrets planted through every dialect."""

    def __init__(self, folder, form: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.log = open_log(f"sqlite://{folder}/log.db")
        model = write_model_folder(folder / "m", TEMPLATES[form])
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        engine = Echo(self.tokenizer.token_to_id("<|im_end|>"))
        self.app = make_app(
            log=self.log, engine=engine, engine_name="echo", renderer=Renderer.load(model), secret=SECRET,
            limits=LIMITS_HERE,
        )  # fmt: skip
        self.living = living(self.app)
        self.loop.run_until_complete(self.living.__aenter__())
        self.statuses: Counter[int] = Counter()
        for k, name in enumerate(VICTIMS):
            dialect = DIALECTS[k % 3]
            body = json.dumps(BODIES[dialect](SECRETS[name])).encode()
            headers = [(b"x-api-key", sign(SECRET, "g", name).encode())]
            sent = Sent("POST", f"/x/{name}/{PATHS[dialect]}", headers, (body,))
            assert self.loop.run_until_complete(send(self.app, sent)).status == 200

    def close(self) -> None:
        self.loop.run_until_complete(self.living.__aexit__(None, None, None))
        self.loop.close()
        self.log.close()


@pytest.fixture(scope="module", params=list(TEMPLATES))
def world(tmp_path_factory, request):
    world = World(tmp_path_factory.mktemp("fuzz"), request.param)
    yield world
    world.close()


def sent(asked: Fuzzed) -> Sent:
    key = sign(SECRET, "g", asked.token) if asked.signed else asked.token
    header = (b"authorization", b"Bearer ") if asked.bearer else (b"x-api-key", b"")
    key_header = (header[0], header[1] + key.encode("utf-8", "replace"))
    size = max(1, len(asked.body) // asked.pieces)
    parts = tuple(asked.body[k : k + size] for k in range(0, len(asked.body), size)) or (b"",)
    cut = parts[:-1] if asked.cut else parts
    return Sent(asked.method, asked.path, [*asked.headers, key_header], cut, asked.cut)


def check(asked: Fuzzed, got: Got) -> None:
    assert got.status < 500, got.body[:500]
    assert got.ended == bool(got.status)
    assert got.status or asked.cut
    for name, secret in SECRETS.items():
        assert name == asked.token or secret.encode() not in got.body
    if got.status >= 400 and got.headers.get(b"content-type") == b"application/json":
        assert json.loads(got.body)["error"]["message"]
    if asked.method == "POST" and asked.tail in PATHS.values() and asked.execution in NAMES:
        if not asked.signed:
            assert got.status == 401
        elif asked.token != asked.execution:
            assert got.status == 403


def test_any_request(world) -> None:
    @settings(
        max_examples=REQUESTS // AT_ONCE,
        deadline=None,
        derandomize="HEADRACE_FUZZ" not in os.environ,
        database=None,
    )
    @given(st.lists(st.integers(0, 2**63), min_size=AT_ONCE, max_size=AT_ONCE, unique=True))
    def run(seeds: list[int]) -> None:
        batch = [fuzzed(seed, NAMES, SECRETS, BODY_BYTES_MAX) for seed in seeds]

        async def all_at_once() -> list[Got]:
            return await asyncio.gather(*(send(world.app, sent(asked)) for asked in batch))

        for asked, got in zip(batch, world.loop.run_until_complete(all_at_once()), strict=True):
            world.statuses[got.status] += 1
            check(asked, got)

    run()
    print("requests by status:", dict(sorted(world.statuses.items())))
    assert sum(world.statuses.values()) >= REQUESTS - AT_ONCE
    assert world.statuses[200] > REQUESTS // 8  # it is not only refusals that were tried
    assert {400, 401, 403, 404, 405, 413} <= world.statuses.keys()


def test_what_was_recorded_of_them_is_whole_and_of_its_own_execution(world) -> None:
    """After the requests above: calls are numbered without a gap, sequences can be made, secrets stayed."""
    calls = defaultdict(dict)
    for event in read_events(world.log, "calls"):
        calls[event.execution_id][event.call_id] = event
    assert set(VICTIMS) <= calls.keys()
    for name, events in calls.items():
        assert sorted(events) == list(range(len(events)))
        last = whole(events, max(events))
        texts = [world.tokenizer.decode(last, skip_special_tokens=False)]
        for event in events.values():
            ids = np.frombuffer(event.context_ids + event.output_ids, "<i4")
            texts.append(world.tokenizer.decode(ids.tolist(), skip_special_tokens=False))
        found = "\n".join(texts)
        assert [n for n, secret in SECRETS.items() if secret in found] == ([name] if name in SECRETS else [])
