"""A history of 200,000 tokens that grows by 1,000 a call, 400 times: `python -m tests.bench.bench_history`.

What the proxy's process computes for a call, part by part, at the 10th and at the 400th call (processor
time; the median of nine calls around it).  Reading grows with the body, which is sent whole each time, and
so does the engine's body; everything else depends on what is new alone:

    read      the body's JSON to messages
    match     each message known again, or not
    prompt    what is new rendered and tokenised, the ids of the rest taken from the tree
    body      the ids as JSON for the engine
    record    the answer parsed, the event, the tree
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ingest.engines.client import Generation
from ingest.engines.request import generate_body
from ingest.identity import Identity
from ingest.proxy.calls import Call
from ingest.proxy.dialects.chat import Chat
from ingest.proxy.execution import Execution
from ingest.proxy.rendering import Renderer
from tests.support.tiny_model import write_model_folder

COMMAND = "python -m tests.bench.bench_history"
BEGINS_TOKENS, GROWS_TOKENS = 200_000, 1000
CALLS = 400
AROUND = 4
FLAT_BOUND = 1.5
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
ANSWER = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'
WORDS = ("the", "command", "returned", "output", "task", "is", "done", "first", "think", "about", "it", "run")
T = TypeVar("T")


class Growing:
    """One execution, asked again and again; `took` has milliseconds of each part of each call."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.execution = Execution(Identity("g-1", "e-1"), renderer, "scripted", 0)
        self.dialect = Chat()
        self.took: dict[str, list[float]] = defaultdict(list)
        self.sizes: list[tuple[int, int]] = []  # tokens of the prompt, bytes of the body
        self._random = np.random.default_rng(0)
        output = [*renderer.encode(ANSWER).tolist(), renderer.stop_ids[-1]]
        self._generation = Generation(
            output_ids=np.array(output, np.int32),
            output_logprobs=np.full(len(output), -0.5, np.float32),
            finish_reason="stop",
            spans=(),
            cached_tokens=0,
            weight_version=0,
        )
        loop = asyncio.new_event_loop()
        self._gone: asyncio.Future[None] = loop.create_future()
        loop.close()
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": self._text(BEGINS_TOKENS)}]

    def _text(self, tokens: int) -> str:
        text = " ".join(self._random.choice(WORDS, tokens))
        return text[: len(text) * tokens // len(self.renderer.encode(text))]

    def _timed(self, part: str, do: Callable[[], T]) -> T:
        began = time.process_time()
        value = do()
        self.took[part].append(1e3 * (time.process_time() - began))
        return value

    def ask(self) -> None:
        """One call, as the proxy answers it, and the tool's result that the harness adds."""
        body = msgspec.json.encode({"model": "m", "messages": self.messages, "tools": TOOLS})
        execution = self.execution
        request = self._timed("read", lambda: self.dialect.parse(body, {}))
        match = self._timed("match", lambda: execution.history.match(request.messages))
        prompt = self._timed("prompt", lambda: execution.prompt(request, match))
        self._timed("body", lambda: generate_body("0" * 32, prompt.ids, {}))
        call = Call(
            execution=execution,
            request=request,
            role="main",
            key=request.digest("main", match.place),
            match=match,
            prompt=prompt,
            temperature=1.0,
            new_tokens_max=100,
            started_us=0,
            gone=self._gone,
            tools=execution.tool_events(request, 7),
        )
        recorded = self._timed(
            "record", lambda: execution.record(call, self._generation, delivered=True, now_us=5)
        )
        if recorded.answer is None or recorded.event.relation == "branches":
            raise RuntimeError(f"call {recorded.event.call_id} does not go on: {recorded.event.difference}")
        self.sizes.append((len(prompt.ids), len(body)))
        answer = msgspec.json.decode(self.dialect.answer(request, recorded.answer))
        message = answer["choices"][0]["message"]
        found = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"]}
        self.messages += [message, found | {"content": self._text(GROWS_TOKENS - 60)}]

    def at(self, call: int) -> dict[str, float]:
        """Milliseconds of each part around a call, from 1."""
        near = slice(max(0, call - 1 - AROUND), call + AROUND)
        return {part: float(np.median(took[near])) for part, took in self.took.items()}


def measure() -> Growing:
    """All calls."""
    with tempfile.TemporaryDirectory() as folder:
        growing = Growing(Renderer.load(write_model_folder(Path(folder) / "m")))
        for _ in range(CALLS + AROUND):
            growing.ask()
        return growing


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    return {
        "id": f"history.{name}", "what": what, "value": round(value, 3), "unit": unit,
        "bound": bound, "holds": None if bound is None else value <= bound, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    growing, rows = measure(), []
    first, last = growing.at(10), growing.at(CALLS)
    for call, parts in ((10, first), (CALLS, last)):
        tokens, size = growing.sizes[call - 1]
        where = f"call {call}: {tokens:,} tokens, {size / 1e6:.2f} MB"
        rows += [_row(f"{part}.{call}", f"{part}, {where}", took, "ms") for part, took in parts.items()]
        rows.append(_row(f"all.{call}", f"all parts, {where}", sum(parts.values()), "ms"))
    new = [parts["prompt"] + parts["record"] for parts in (first, last)]
    rows.append(
        _row("flat", f"prompt and record, call {CALLS} over call 10", new[1] / new[0], "x", FLAT_BOUND)
    )
    return rows


def main() -> None:
    for row in run():
        print(f"{row['id']:28} {row['value']:12,.3f} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
