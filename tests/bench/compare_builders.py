"""Ways to make training samples of raw calls, each alone in a process: `bench_compare` starts them.

    python -P tests/bench/compare_builders.py skyrl FOLDER

FOLDER holds executions as `traces.RawExecution`, one `*.npz` each; `small.npz` is built first, unmeasured,
so that whatever is compiled or imported late is there.  Each builder is given what it takes (lists of ids,
typed messages, or the arrays); only `build` and `finish` are timed, on one thread, in processor time.  The
answer is one line of JSON.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


class Trie:
    """The simple one: a dict a token, in which each token knows the call that put it there."""

    package = ""

    def __init__(self) -> None:
        self.samples = self.tokens = 0
        self.found = hashlib.sha256()

    def take(self, raw: dict[str, Any]) -> Any:
        return list(zip(_split(raw, "input"), _split(raw, "output"), strict=True))

    def build(self, calls: Any) -> Any:
        root: dict[int, Any] = {}
        parents, shared = [], []
        for call, (ids, output) in enumerate(calls):
            at, owner, n = root, -1, 0
            for token in ids:
                there = at.get(token)
                if there is None:
                    break
                owner, at = there
                n += 1
            parents.append(owner)
            shared.append(n)
            for token in ids[n:] + output:
                there = at.get(token)
                if there is None:
                    at[token] = there = (call, {})
                at = there[1]
        return root, parents, shared

    def count(self, built: Any) -> None:
        root, parents, shared = built
        _digest(self.found, parents, shared)
        ahead = [root]
        while ahead:
            below = [child for _, child in ahead.pop().values()]
            self.tokens += len(below)
            self.samples += sum(not child for child in below)
            ahead += below

    def finish(self) -> None:
        """Nothing is left to do."""


class Matching:
    """Ours, the tree alone: `ingest.matching.encode` over the arrays."""

    package = ""

    def __init__(self) -> None:
        from tests.bench import traces

        self.traces = traces
        self.samples = self.tokens = 0
        self.found = hashlib.sha256()

    def take(self, raw: dict[str, Any]) -> Any:
        return self.traces.RawExecution(**raw)

    def build(self, raw: Any) -> Any:
        return self.traces.coded(raw)

    def count(self, coded: Any) -> None:
        _digest(self.found, coded.parents, coded.shared)
        self.samples += coded.leaves
        self.tokens += int(coded.own.sum())

    def finish(self) -> None:
        """Nothing is left to do."""


class Headrace(Matching):
    """Ours, all of it: encode, the SQL models (every leaf admitted), and the rows that are trained."""

    def __init__(self) -> None:
        from lake.models import Models

        super().__init__()
        self.models = Models.load()
        self.parts: list[Any] = []

    def count(self, coded: Any) -> None:
        super().count(coded)
        self.samples = 0
        self.parts.append(coded)

    def finish(self) -> None:
        import duckdb

        from lake.models import Params, register
        from trainer.packing import pack

        traces, parts = self.traces, self.parts
        shape = traces.Shape(calls=len(parts[0].roles), group_size=len(parts))
        tables = traces.tables_of(parts, shape)
        with duckdb.connect(config={"threads": 1}) as con:
            register(con, {f"event_{name}": table for name, table in tables.items()})
            derived = self.models.derive(con, ["weights", "segments", "trees"], Params(j_max=0))
        self.samples = len(pack(**derived).row_path)


class SkyRL:
    """SkyRL's prefix-aware merging of step-wise output: consecutive calls, each of which extends the last."""

    package = "skyrl"

    def __init__(self) -> None:
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # skyrl 0.3.0 with pydantic 2 needs it on 3.11
        from loguru import logger
        from skyrl.train.generators.base import TrajectoryID
        from skyrl.train.generators.utils import merge_stepwise_output

        logger.remove()
        self.merge, self.name = merge_stepwise_output, TrajectoryID
        self.samples = self.tokens = 0
        self.found = None

    def take(self, raw: dict[str, Any]) -> Any:
        outputs = _split(raw, "output")
        calls = len(outputs)
        return {
            "prompt_token_ids": _split(raw, "input"),
            "response_ids": outputs,
            "rewards": [0.0] * (calls - 1) + [1.0],
            "loss_masks": [[1] * len(output) for output in outputs],
            "stop_reasons": ["stop"] * calls,
            "rollout_metrics": None,
            "rollout_logprobs": _cut(raw["output_logprobs"], raw["output_offsets"]),
            "trajectory_ids": [self.name("execution", int(raw["execution"]))] * calls,
            "rollout_expert_indices": None,
            "is_last_step": [False] * (calls - 1) + [True],
        }

    def build(self, steps: Any) -> Any:
        return self.merge(steps)

    def count(self, merged: Any) -> None:
        self.samples += len(merged["response_ids"])
        self.tokens += sum(map(len, merged["prompt_token_ids"])) + sum(map(len, merged["response_ids"]))

    def finish(self) -> None:
        """Nothing is left to do."""


class Verifiers:
    """The message graph of verifiers: a node a message, shared by every prompt that begins with it."""

    package = "verifiers"

    def __init__(self) -> None:
        from verifiers.v1 import graph, trace, types

        self.graph, self.trace, self.types = graph, trace, types
        self.samples = self.tokens = 0
        self.found = None

    def take(self, raw: dict[str, Any]) -> Any:
        """Prompts of typed messages; a short digest stands for a message's text."""
        types, outputs = self.types, _split(raw, "output")
        said = {np.array(output, np.int32).tobytes() for output in outputs}
        logprobs = _cut(raw["output_logprobs"], raw["output_offsets"])
        calls = []
        for call, prompt in enumerate(_split(raw, "input")):
            ids = raw["input_ids"][raw["input_offsets"][call] : raw["input_offsets"][call + 1]]
            places = slice(raw["message_offsets"][call], raw["message_offsets"][call + 1])
            ends = raw["message_ends"][places].tolist()
            spans = list(pairwise([0, *ends]))
            tokens = types.TurnTokens(
                prompt_ids=prompt, completion_ids=outputs[call], completion_logprobs=logprobs[call],
                message_spans=spans,
            )  # fmt: skip
            response = types.Response(
                id=str(call), created=0, model="m", finish_reason="stop", tokens=tokens,
                message=types.AssistantMessage(content=_text(np.array(outputs[call], np.int32).tobytes())),
            )  # fmt: skip
            parts = [ids[start:end].tobytes() for start, end in spans]
            kinds = (types.AssistantMessage if part in said else types.UserMessage for part in parts)
            messages = [kind(content=_text(part)) for kind, part in zip(kinds, parts, strict=True)]
            calls.append((messages, response))
        return calls

    def build(self, calls: Any) -> Any:
        trace = self.trace.Trace.model_construct()
        for messages, response in calls:
            self.graph.prepare_turn(trace, messages).commit(response)
        samples = [(b.token_ids, b.sampled_mask, b.logprobs) for b in trace.branches]
        return trace, samples

    def count(self, built: Any) -> None:
        trace, samples = built
        self.samples += len(samples)
        self.tokens += sum(len(node.token_ids) for node in trace.nodes)

    def finish(self) -> None:
        """Nothing is left to do."""


BUILDERS = {"trie": Trie, "matcher": Matching, "headrace": Headrace, "skyrl": SkyRL, "verifiers": Verifiers}


def _text(tokens: bytes) -> str:
    return hashlib.blake2b(tokens, digest_size=16).hexdigest()


def _cut(values: Any, offsets: Any) -> list[list[Any]]:
    flat = values.tolist()
    return [flat[start:end] for start, end in pairwise(offsets.tolist())]


def _split(raw: dict[str, Any], what: str) -> list[list[int]]:
    return _cut(raw[f"{what}_ids"], raw[f"{what}_offsets"])


def _digest(found: Any, parents: Any, shared: Any) -> None:
    found.update(np.asarray(parents, np.int64).tobytes())
    found.update(np.asarray(shared, np.int64).tobytes())


def _load(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return {name: arrays[name] if arrays[name].ndim else int(arrays[name]) for name in arrays.files}


def _now() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Seconds and bytes of one builder over every execution of a folder, and what it made."""
    began = _now()
    warm = BUILDERS[name]()
    warm.count(warm.build(warm.take(_load(folder / "small.npz"))))
    warm.finish()
    del warm
    gc.collect()
    builder, held, seconds = BUILDERS[name](), _now(), 0.0
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    for path in sorted(folder.glob("[0-9]*.npz")):
        given = builder.take(_load(path))
        start = time.process_time()
        built = builder.build(given)
        seconds += time.process_time() - start
        builder.count(built)
        del given, built
    start = time.process_time()
    builder.finish()
    seconds += time.process_time() - start
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return {
        "seconds": seconds,
        "bytes": int(peak.split()[1]) * 1024 - held,
        "imports": held - began,
        "samples": builder.samples,
        "tokens": builder.tokens,
        "tree": builder.found and builder.found.hexdigest(),
        "version": importlib.metadata.version(builder.package) if builder.package else "",
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
