"""What the capture proxy costs: `python -m tests.bench.bench_proxy`.

64 harnesses at once, each a conversation of tool calls, over a scripted engine that answers after
half a second; proxy, engine and harnesses are processes of their own.  CPU is the proxy process's
(user and system, all threads); the added latency is a call's time less the engine's, both as the
client sees them at the same concurrency.  Three runs; the figures are those of the one in the middle.

Then 1,152 executions that are live at once, each with a history of 100,000 tokens that is made through
the proxy's own door: a prompt of 97,000, and two calls more that bring the rest.  The memory is that of the
proxy's process when all of them are there (resident; the peak too).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from ingest.identity import read_secret, sign
from ingest.proxy.rendering import Renderer
from lake import config as configs
from lake.layout import Run
from tests.support.tiny_model import write_model_folder

COMMAND = "python -m tests.bench.bench_proxy"
CONCURRENT = 64
CALLS_EACH = 12
DELAY_S = 0.5
CPU_MS_BOUND = 2.0
ADDED_P50_MS_BOUND, ADDED_P99_MS_BOUND = 5.0, 20.0
EXECUTIONS = 1152
HISTORY_TOKENS = 100_000
AT_ONCE = 8
RUNS = 3
MEMORY_MB_BOUND = 1500.0
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen([sys.executable, "-m", *arguments], env=environment, stdout=subprocess.DEVNULL)


async def _up(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.get(url) as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def _timed(session: aiohttp.ClientSession, url: str, body: bytes, **rest: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    async with session.post(url, data=body, **rest) as reply:
        content = await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{url}: {reply.status} {content!r}")
    return time.perf_counter() - began, msgspec.json.decode(content)


async def _harness(
    session: aiohttp.ClientSession, url: str, secret: bytes, number: int
) -> list[tuple[float, int]]:
    """One conversation through the proxy: seconds and prompt's tokens of each call."""
    execution = f"e-{number}"
    headers = {"Authorization": f"Bearer {sign(secret, f'g-{number // 8}', execution)}"}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a helpful assistant that can call tools. " * 8},
        {"role": "user", "content": f"Task {number}: please solve the task with bash commands."},
    ]
    took = []
    await asyncio.sleep(DELAY_S * number / CONCURRENT)  # harnesses do not step in time
    for _ in range(CALLS_EACH):
        body = msgspec.json.encode({"model": "m", "messages": messages, "tools": TOOLS})
        seconds, answer = await _timed(
            session, f"{url}/x/{execution}/v1/chat/completions", body, headers=headers
        )
        took.append((seconds, answer["usage"]["prompt_tokens"]))
        message = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "file.txt\n" * 4}
        messages += [message, result]
    return took


async def _engine_alone(
    session: aiohttp.ClientSession, url: str, number: int, prompts: list[int]
) -> list[float]:
    """As many calls without the proxy, with prompts as long as those that it sent."""
    await asyncio.sleep(DELAY_S * number / CONCURRENT)
    took = []
    for tokens in prompts:
        asked = {"rid": f"alone-{number}", "input_ids": [1] * tokens, "return_logprob": True}
        body = msgspec.json.encode(asked | {"sampling_params": {"max_new_tokens": 64, "temperature": 1.0}})
        took.append((await _timed(session, f"{url}/generate", body))[0])
    return took


def _quantile(took: list[list[float]], q: float) -> float:
    seconds = sorted(s for each in took for s in each)
    return seconds[min(len(seconds) - 1, int(q * len(seconds)))]


async def _measure(run: Run, engine: str, proxy: str, pid: int) -> dict[str, float]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await _up(session, f"{engine}/ready")
        await _up(session, f"{proxy}/health")
        secret = read_secret(run)
        await asyncio.gather(*(_harness(session, proxy, secret, 1000 + n) for n in range(4)))  # warm
        before = psutil.Process(pid).cpu_times()
        calls = await asyncio.gather(*(_harness(session, proxy, secret, n) for n in range(CONCURRENT)))
        after = psutil.Process(pid).cpu_times()
        through, prompts = ([[call[k] for call in each] for each in calls] for k in (0, 1))
        alone = await asyncio.gather(
            *(_engine_alone(session, engine, n, tokens) for n, tokens in enumerate(prompts))
        )
    cpu = after.user + after.system - before.user - before.system
    return {
        "cpu_ms": 1e3 * cpu / (CONCURRENT * CALLS_EACH),
        "added_p50_ms": 1e3 * (_quantile(through, 0.5) - _quantile(alone, 0.5)),
        "added_p99_ms": 1e3 * (_quantile(through, 0.99) - _quantile(alone, 0.99)),
    }


@contextlib.contextmanager
def _processes(context_tokens: int, delay_s: float) -> Iterator[tuple[Run, str, str, int]]:
    """A run, the URLs of an engine and of a proxy in front of it, and the proxy's process id."""
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name))
        sizes = [f"engine.context_tokens={context_tokens}", "rollout.new_tokens_max=64"]
        run.config_file.write_bytes(msgspec.json.encode(configs.override(configs.Config(), sizes)))
        model = write_model_folder(run.weights(0))
        engine_port, proxy_port = _free_port(), _free_port()
        engine, proxy = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{proxy_port}"
        processes = [
            _start(
                "tests.support.scripted_engine", "--model", str(model), "--port", str(engine_port),
                "--delay-s", str(delay_s),
            ),
            _start("ingest.proxy", "--run", name, "--engine", engine, "--port", str(proxy_port)),
        ]  # fmt: skip
        try:
            yield run, engine, proxy, processes[1].pid
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def measure() -> dict[str, float]:
    """One run of the whole set-up."""
    with _processes(8192, DELAY_S) as (run, engine, proxy, pid):
        return asyncio.run(_measure(run, engine, proxy, pid))


# -------------------------------------------------------------------------- many long histories
def _text(renderer: Renderer, tokens: int) -> str:
    """Numbers that are so many tokens, about; they are quick to tokenise, and no text is kept."""
    text = " ".join(f"{k % 1000:03d}" for k in range(tokens))
    return text[: len(text) * tokens // len(renderer.encode(text))]


async def _fill(proxy: str, secret: bytes, texts: tuple[str, str], number: int, session: Any) -> int:
    """One execution's three calls; the tokens of its history at the end."""
    execution = f"e-{number}"
    headers = {"Authorization": f"Bearer {sign(secret, f'g-{number // 8}', execution)}"}
    url = f"{proxy}/x/{execution}/v1/chat/completions"
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{number} {texts[0]}"}]
    tokens = 0
    for _ in range(3):
        body = msgspec.json.encode({"model": "m", "messages": messages, "tools": TOOLS})
        _, answer = await _timed(session, url, body, headers=headers)
        tokens = answer["usage"]["total_tokens"]
        message = answer["choices"][0]["message"]
        found = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": texts[1]}
        messages += [message, found]
    return tokens


async def _filled(run: Run, engine: str, proxy: str, executions: int) -> list[int]:
    renderer, secret = Renderer.load(run.weights(0)), read_secret(run)
    texts = (_text(renderer, HISTORY_TOKENS - 3000), _text(renderer, 1500))
    left = iter(range(executions))

    async def some(session: aiohttp.ClientSession) -> list[int]:
        return [await _fill(proxy, secret, texts, number, session) for number in left]

    async with aiohttp.ClientSession() as session:
        await _up(session, f"{engine}/ready")
        await _up(session, f"{proxy}/health")
        filled = await asyncio.gather(*(some(session) for _ in range(AT_ONCE)))
        async with session.get(f"{proxy}/health") as reply:
            if (await reply.json())["executions"] != executions:
                raise RuntimeError("the proxy does not hold all executions")
    return [tokens for each in filled for tokens in each]


def measure_memory(executions: int = EXECUTIONS) -> dict[str, float]:
    """Megabytes (1e6) of the proxy's process with so many executions, and the tokens of the shortest."""
    with _processes(2 * HISTORY_TOKENS, 0.0) as (run, engine, proxy, pid):
        tokens = asyncio.run(_filled(run, engine, proxy, executions))
        status = dict(re.findall(r"(Vm\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
        return {
            "tokens": min(tokens),
            "resident_mb": int(status["VmRSS"]) * 1024 / 1e6,
            "peak_mb": int(status["VmHWM"]) * 1024 / 1e6,
        }


def _row(name: str, what: str, value: float, bound: float | None = None, unit: str = "ms") -> dict[str, Any]:
    return {
        "id": f"proxy.{name}", "what": what, "value": round(value, 3), "unit": unit,
        "bound": bound, "holds": None if bound is None else value <= bound, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    runs = sorted((measure() for _ in range(RUNS)), key=lambda found: found["added_p50_ms"])
    found, memory = runs[RUNS // 2], measure_memory()
    of = f"{CONCURRENT} concurrent calls"
    live = f"{EXECUTIONS} live executions of at least {memory['tokens']:,.0f} tokens"
    return [
        _row("cpu", f"the proxy's CPU a call, {of}", found["cpu_ms"], CPU_MS_BOUND),
        _row("added.p50", f"latency added to the engine's, {of}", found["added_p50_ms"], ADDED_P50_MS_BOUND),
        _row("added.p99", f"latency added to the engine's, {of}", found["added_p99_ms"], ADDED_P99_MS_BOUND),
        _row("memory", f"the process with {live}", memory["resident_mb"], MEMORY_MB_BOUND, "MB"),
        _row("memory.peak", "the most that it had", memory["peak_mb"], None, "MB"),
    ]


def main() -> None:
    for row in run():
        print(f"{row['id']:28} {row['value']:12,.3f} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
