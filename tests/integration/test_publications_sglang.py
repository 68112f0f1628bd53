"""Three publications while real SGLang generates over a thousand tokens: the lake tells who sampled what."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ingest.engines.client import EngineClient
from lake import events as ev
from lake.config import Config, Publication
from lake.layout import Run
from lake.log import Log
from lake.query import open_lake
from tests.support.ingested import work
from tests.support.running_proxy import LIMITS, Running, running_proxy
from tests.support.sglang import CONTEXT, Server
from tests.support.tiny_model import TEMPLATE
from trainer.publication import Publisher
from trainer.publication.folder import Folder

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
FIRST, TIMES = 100, 3  # the version that is there before (no other test has such), and publications
GROUP, CALLS = "g-000000", 3
TOKENS = 1500
APART = 100  # tokens of each call, at least, between two publications


@pytest.fixture
def run(tmp_path: Path, sglang_server: Server) -> Run:
    """A run with the weights of all versions; neither model ends an answer by itself."""
    run = Run(tmp_path / "run")
    for k in range(TIMES + 1):
        source = (sglang_server.model, sglang_server.model_2)[k % 2]
        shutil.copytree(source, run.weights(FIRST + k))
        (run.weights(FIRST + k) / "chat_template.jinja").write_text(TEMPLATE)
    run.config_file.write_bytes(msgspec.json.encode(Config(commit_every_s=0.05)))
    return run


def publish(run: Run, log: Log, url: str, version: int) -> None:
    """As the trainer does.  The read-back is another test's (these are no weights of a trainer)."""
    publisher = Publisher(run, Publication(tolerance=0.0), [url], context_tokens=CONTEXT)
    with closing(publisher):
        digest = Folder(run.weights(version)).digest()
        publisher.publish(
            log, version=version, boundary=version - FIRST, digest=digest, score=lambda ids: ids
        )


async def tokens_held(client: EngineClient) -> int:
    """Of all calls that run: prompts and what was sampled."""
    return (await client.loads())[0].used_tokens or 0


async def ask(proxy: Running, index: int) -> None:
    messages = [{"role": "user", "content": f"number {index}, for long"}]
    status, _ = await proxy.answer(messages, f"{GROUP}.{index}", max_tokens=TOKENS)
    assert status == 200


def prologue() -> list[ev.Event]:
    dispatched = ev.GroupDispatched(
        time_us=1, group_id=GROUP, task="{}", size=CALLS, policy_version=FIRST, boundary=0
    )
    launched = [
        ev.ExecutionLaunched(time_us=2, group_id=GROUP, execution_id=f"{GROUP}.{i}", index=i)
        for i in range(CALLS)
    ]
    return [dispatched, *launched]


def epilogue() -> list[ev.Event]:
    """Executions finished and scored, and a step of the last version that learned from them."""
    step = FIRST + TIMES
    found: list[ev.Event] = []
    for i in range(CALLS):
        named = {"time_us": 3, "group_id": GROUP, "execution_id": f"{GROUP}.{i}"}
        found.append(ev.ExecutionFinished(**named, status="completed", calls=1))
        found.append(ev.ExecutionScored(**named, assessment="scored", value=i / CALLS, evaluator="t"))
    return [
        *found,
        ev.StepPlanned(
            time_us=4, step=step, policy_version=step, groups=(GROUP,), digests=("",), micro_steps=(1,),
            set_name="default", seed=0, learning_rate=0.0,
        ),
        ev.StepCommitted(
            time_us=5, step=step, policy_version=step + 1, digest="", checkpoint="", loss=0.0,
            gradient_norm=0.0, executions=CALLS, tokens=0, targets=0,
        ),
        ev.GroupConsumed(time_us=6, group_id=GROUP, step=step, policy_version=step),
    ]  # fmt: skip


async def generate_and_publish(run: Run, log: Log, server: Server) -> None:
    limits = replace(LIMITS, context_tokens=CONTEXT, new_tokens_max=CONTEXT)
    async with (
        running_proxy(log, run.weights(FIRST), server.url, limits) as proxy,
        EngineClient(server.url) as client,
    ):
        await asyncio.to_thread(publish, run, log, server.url, FIRST)
        calls = [asyncio.create_task(ask(proxy, i)) for i in range(CALLS)]
        for k in range(1, TIMES + 1):
            while await tokens_held(client) < k * APART * CALLS:
                ended = [call.result() for call in calls if call.done()]  # raises what went wrong
                assert not ended, f"a call ended before publication {k}"
                await asyncio.sleep(0.02)
            await asyncio.to_thread(publish, run, log, server.url, FIRST + k)
        await asyncio.gather(*calls)


async def test_three_publications_during_long_generations(run: Run, sglang_server: Server) -> None:
    async with EngineClient(sglang_server.url) as client:
        before = (await client.model_info()).version or 0
        with closing(run.open_log()) as log:
            log.append(prologue())
            try:
                await generate_and_publish(run, log, sglang_server)
            finally:
                await client.resume()
                await client.update_weights(str(sglang_server.model), before)
            await asyncio.to_thread(work, run)
            log.append(epilogue())
        await asyncio.to_thread(work, run)
    check_lake(run)


def check_lake(run: Run) -> None:
    """Spans add up to each output; the queries count what they say."""
    with closing(open_lake(run.path)) as lake:
        calls = lake.rows("select execution_id, n_output, spans from event_calls order by execution_id")
        assert len(calls) == CALLS
        by_execution: Counter[tuple[str, int]] = Counter()
        for call in calls:
            spans = call["spans"]
            assert call["n_output"] == TOKENS
            assert [s["version"] for s in spans] == [FIRST + k for k in range(TIMES + 1)]
            assert [s["start"] for s in spans] == [0, *(s["end"] for s in spans[:-1])]
            assert spans[-1]["end"] == TOKENS
            for s in spans:
                by_execution[call["execution_id"], s["version"]] += s["end"] - s["start"]
        rows = lake.rows("from versions_by_execution")
        assert {(r["execution_id"], r["version"]): r["tokens"] for r in rows} == by_execution

        targets: Counter[int] = Counter()
        for (_, version), tokens in by_execution.items():
            targets[FIRST + TIMES - version] += tokens
        rows = lake.rows("from staleness_distribution")
        assert {r["d"]: r["targets"] for r in rows} == targets
        assert {r["d"]: r["groups"] for r in rows if r["groups"]} == {TIMES: 1}
        (step,) = lake.rows("from staleness_by_step")
        assert (step["d_mean"], step["targets"], step["targets_unknown"]) == (TIMES, CALLS * TOKENS, 0)
        mean = sum(d * tokens for d, tokens in targets.items()) / (CALLS * TOKENS)
        assert step["token_d_mean"] == pytest.approx(mean)
        assert step["token_d_max"] == TIMES
        published = lake.rows("select policy_version from publications order by 1")
        assert [p["policy_version"] for p in published] == [FIRST + k for k in range(TIMES + 1)]
