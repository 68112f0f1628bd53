"""Time to derive the models: `python -m tests.bench.bench_sql`.

One group of the demo's shape (8 executions of 9 calls), 12 of them at once, and a whole lake of 51,200
calls of long-running executions; processor time on one thread, the least of several runs, since other work
on the machine only ever adds.  `segments` and `weights` of a whole lake read no token list.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import duckdb

from lake.models import Models, Params, register
from tests.support.big_lake import big_lake

COMMAND = "python -m tests.bench.bench_sql"
TRAINED = ("segments", "weights", "trees")
SMALL, LARGE = 4, 16  # groups of 8 executions of 400 calls: 12,800 and 51,200 calls


def _seconds(groups: int, calls: int, outputs: Sequence[str], runs: int) -> float:
    """The least processor time of several derivations of as many groups of 8 executions."""
    models, took = Models.load(), []
    with duckdb.connect(config={"threads": 1}) as con:
        register(con, big_lake(groups, 8, calls))
        for _ in range(runs):
            start = time.process_time()
            models.derive(con, outputs, Params())
            took.append(time.process_time() - start)
    return min(took)


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    return {
        "id": f"sql.{name}",
        "what": what,
        "value": round(value, 3),
        "unit": unit,
        "bound": bound,
        "holds": None if bound is None else value <= bound,
        "command": COMMAND,
    }


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    one, twelve = _seconds(1, 9, TRAINED, 15), _seconds(12, 9, TRAINED, 15)
    state = _seconds(12, 9, ["group_state"], 15)
    small, large = (_seconds(g, 400, TRAINED[:2], 3) for g in (SMALL, LARGE))
    calls = LARGE * 8 * 400
    return [
        _row("group", "segments, weights and trees of one group of 72 calls", 1e3 * one, "ms", 100),
        _row("groups12", "the same of 12 groups at once", 1e3 * twelve, "ms"),
        _row("groups12.ratio", "12 groups at once over one group", twelve / one, "times", 4),
        _row("state12", "group_state of 12 open groups", 1e3 * state, "ms"),
        _row("lake", f"segments and weights of a whole lake of {calls} calls", large, "s"),
        _row("lake.rate", "calls a second of that", calls / large, "calls/s"),
        _row("lake.linear", "time a call, over that of a quarter of it", large / small / 4, "times", 1.3),
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['id']:20} {row['value']:12} {row['unit']:10} {row['what']}")
