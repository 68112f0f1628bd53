"""P6: packing admitted paths into training arrays, from loaded tables: `python -m tests.bench.bench_packing`.

Two shapes: long executions like those of the paper (hundreds of calls, main contexts with sub-agents
between, five paths), and the demo's (eight calls of a dozen tokens).  Seconds of processor time, best of
several: packing runs on one thread, and others on the machine have no say.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.packing import pack

COMMAND = "python -m tests.bench.bench_packing"
BOUND = 150.0
BEST_OF = 7
SCHEMA = pa.schema(
    [
        ("execution_id", pa.string()),
        ("path", pa.int32()),
        ("depth_start", pa.int64()),
        ("length", pa.int64()),
        ("tree_start", pa.int64()),
        ("logprob_start", pa.int64()),
        ("sampled", pa.bool_()),
        ("target", pa.bool_()),
    ]
)


@dataclass
class Shape:
    """An execution: `mains` main contexts one after another, with sub-agents between their calls."""

    executions: int
    mains: int
    calls: int  # of each main context
    subs: int  # sub-agents of each main context
    sub_calls: int
    context: int  # mean tokens of a call's new context
    output: int  # mean tokens that it sampled
    paths: int


@dataclass
class _Tree:
    """One execution while it is built; a segment is (depth, length, tree, logprob or None)."""

    rng: np.random.Generator
    shape: Shape
    size: int = 0
    sampled: int = 0
    paths: list[list[tuple[int, int, int, int | None]]] = field(default_factory=list)

    def call(self, path: list[tuple[int, int, int, int | None]]) -> None:
        for mean, sampled in ((self.shape.context, False), (self.shape.output, True)):
            n = int(self.rng.integers(max(1, mean // 2), 2 * mean))
            depth = path[-1][0] + path[-1][1] if path else 0
            path.append((depth, n, self.size, self.sampled if sampled else None))
            self.size += n
            self.sampled += n if sampled else 0

    def build(self) -> None:
        s = self.shape
        for _ in range(s.mains):
            main: list[tuple[int, int, int, int | None]] = []
            self.paths.append(main)
            every = max(1, s.calls // max(1, s.subs))
            for k in range(s.calls):
                self.call(main)
                if s.subs and k % every == 0:
                    sub: list[tuple[int, int, int, int | None]] = []
                    self.paths.append(sub)
                    for _ in range(s.sub_calls):
                        self.call(sub)
        self.paths.sort(key=len, reverse=True)
        del self.paths[s.paths :]


def tables(shape: Shape, seed: int = 0) -> tuple[pa.Table, pa.Table, pa.Table]:
    """weights, segments and trees of `shape.executions` executions."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    weights, names, ids, logprobs = [], [], [], []
    for e in range(shape.executions):
        tree, name = _Tree(rng, shape), f"e-{e:06d}"
        tree.build()
        for j, path in enumerate(tree.paths):
            rows += [(name, j, *s, s[3] is not None, s[3] is not None) for s in path]
        n = sum(s[1] for path in tree.paths for s in path if s[3] is not None)
        a = float(rng.normal())
        weights.append((name, True, a, n, a / n))
        names.append(name)
        ids.append(rng.integers(0, 150_000, tree.size, dtype=np.int32))
        logprobs.append(rng.normal(-1, 0.1, tree.sampled).astype(np.float32))
    segments = pa.table(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)], SCHEMA
    )
    weight_names = ["execution_id", "valid", "advantage", "n_targets", "token_weight"]
    trees = pa.table(
        {
            "execution_id": names,
            "token_ids": pa.array(ids, pa.list_(pa.int32())),
            "logprobs": pa.array(logprobs, pa.list_(pa.float32())),
        }
    )
    return pa.table([list(c) for c in zip(*weights, strict=True)], weight_names), segments, trees


def _measure(shape: Shape) -> tuple[float, int]:
    """Best Mtoken/s, tokens of the rows."""
    given = tables(shape)
    took = []
    for _ in range(BEST_OF):
        began = time.process_time()
        packed = pack(*given)
        took.append(time.process_time() - began)
    return packed.tokens / min(took) / 1e6, packed.tokens


def _row(name: str, what: str, shape: Shape, bound: float | None) -> dict[str, Any]:
    value, tokens = _measure(shape)
    what = f"{what}: {shape.executions} executions, {tokens / 1e6:.2f}M tokens in rows"
    holds = None if bound is None else value >= bound
    return {
        "id": name, "what": what, "value": value, "unit": "Mtoken/s a core",
        "bound": bound, "holds": holds, "command": COMMAND,
    }  # fmt: skip


LONG = Shape(executions=32, mains=3, calls=100, subs=10, sub_calls=8, context=500, output=150, paths=5)
DEMO = Shape(executions=32, mains=2, calls=3, subs=1, sub_calls=2, context=18, output=12, paths=5)


def run() -> list[dict[str, Any]]:
    return [
        _row("P6", "packing, the paper's shape", LONG, BOUND),
        _row("P6-demo", "packing, the demo's shape", DEMO, None),
    ]


if __name__ == "__main__":
    from tests.bench.__main__ import show

    show(run())
