"""What the capture proxy costs: `python -m tests.bench.bench_proxy`.

64 harnesses at once, each a conversation of tool calls, over a scripted engine that answers after
half a second; proxy, engine and harnesses are processes of their own.  CPU is the proxy process's
(user and system, all threads); the added latency is a call's time less the engine's, both as the
client sees them at the same concurrency.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from ingest.identity import read_secret, sign
from lake import config as configs
from lake.layout import Run
from tests.support.tiny_model import write_model_folder

COMMAND = "python -m tests.bench.bench_proxy"
CONCURRENT = 64
CALLS_EACH = 12
DELAY_S = 0.5
CPU_MS_BOUND = 2.0
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


async def _harness(session: aiohttp.ClientSession, url: str, secret: bytes, number: int) -> list[float]:
    """One conversation through the proxy: seconds of each call."""
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
        took.append(seconds)
        message = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "file.txt\n" * 4}
        messages += [message, result]
    return took


async def _engine_alone(session: aiohttp.ClientSession, url: str, number: int) -> list[float]:
    """The same number of calls without the proxy."""
    body = msgspec.json.encode(
        {"rid": f"alone-{number}", "input_ids": [1] * 400, "sampling_params": {"max_new_tokens": 64}}
    )
    await asyncio.sleep(DELAY_S * number / CONCURRENT)
    return [(await _timed(session, f"{url}/generate", body))[0] for _ in range(CALLS_EACH)]


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
        alone = await asyncio.gather(*(_engine_alone(session, engine, n) for n in range(CONCURRENT)))
        before = psutil.Process(pid).cpu_times()
        through = await asyncio.gather(*(_harness(session, proxy, secret, n) for n in range(CONCURRENT)))
        after = psutil.Process(pid).cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return {
        "cpu_ms": 1e3 * cpu / (CONCURRENT * CALLS_EACH),
        "added_p50_ms": 1e3 * (_quantile(through, 0.5) - _quantile(alone, 0.5)),
        "added_p99_ms": 1e3 * (_quantile(through, 0.99) - _quantile(alone, 0.99)),
    }


def measure() -> dict[str, float]:
    """One run of the whole set-up."""
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name))
        config = configs.override(
            configs.Config(), ["engine.context_tokens=8192", "rollout.new_tokens_max=64"]
        )
        run.config_file.write_bytes(msgspec.json.encode(config))
        model = write_model_folder(run.weights(0))
        engine_port, proxy_port = _free_port(), _free_port()
        engine, proxy = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{proxy_port}"
        processes = [
            _start(
                "tests.support.scripted_engine", "--model", str(model), "--port", str(engine_port),
                "--delay-s", str(DELAY_S),
            ),
            _start("ingest.proxy", "--run", name, "--engine", engine, "--port", str(proxy_port)),
        ]  # fmt: skip
        try:
            return asyncio.run(_measure(run, engine, proxy, processes[1].pid))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def _row(name: str, what: str, value: float, bound: float | None = None) -> dict[str, Any]:
    return {
        "id": f"proxy.{name}", "what": what, "value": round(value, 3), "unit": "ms",
        "bound": bound, "holds": None if bound is None else value <= bound, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    found = measure()
    of = f"{CONCURRENT} concurrent calls"
    return [
        _row("cpu", f"the proxy's CPU a call, {of}", found["cpu_ms"], CPU_MS_BOUND),
        _row("added.p50", f"latency added to the engine's, {of}", found["added_p50_ms"]),
        _row("added.p99", f"latency added to the engine's, {of}", found["added_p99_ms"]),
    ]


def main() -> None:
    for row in run():
        print(f"{row['id']:28} {row['value']:12,.3f} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
