"""P6: packing admitted paths into training arrays, from loaded tables: `python -m tests.bench packing`.

The tables are those that the SQL models derive of traces (`tests.bench.traces`), in memory as they come from
there.  Seconds of processor time, best of several: packing runs on one thread, and others on the machine have
no say.
"""

from __future__ import annotations

import time
from typing import Any

import duckdb
import pyarrow as pa

from lake.models import Models, Params, register
from tests.bench.traces import PAPER, WIDE, Lengths, Shape, coded, raw_calls, tables_of
from trainer.packing import pack

COMMAND = "python -m tests.bench packing"
BOUND = 150.0
BEST_OF = 7
EXECUTIONS = 32
DEMO = Shape(
    calls=8, context_max=150, prompt=(10, 20), summary=(5, 15), sub_calls=(2, 3),
    output=Lengths(2.5, 0.3, 40, 4), tool=Lengths(2.9, 0.3, 60, 4), retry=0, drift=0, twin=0, cut=0,
    sub_agent=0.1, group_size=8,
)  # fmt: skip


def derived(shape: Shape, executions: int = EXECUTIONS) -> dict[str, pa.Table]:
    """`weights`, `segments` and `trees` of some executions, with the default rule of admission."""
    tables = tables_of([coded(raw_calls(e, shape)) for e in range(executions)], shape)
    with duckdb.connect() as con:
        register(con, {f"event_{name}": table for name, table in tables.items()})
        return Models.load().derive(con, ["weights", "segments", "trees"], Params())


def _row(name: str, what: str, shape: Shape, bound: float | None = None) -> dict[str, Any]:
    given, took = derived(shape), []
    for _ in range(BEST_OF):
        began = time.process_time()
        packed = pack(**given)
        took.append(time.process_time() - began)
    value = packed.tokens / min(took) / 1e6
    what = f"{what}: {packed.rows} paths of {EXECUTIONS} executions, {packed.tokens / 1e6:.2f}M tokens"
    return {
        "id": name, "what": what, "value": value, "unit": "Mtoken/s a core",
        "bound": bound, "holds": None if bound is None else value >= bound, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    return [
        _row("P6", "packing, the paper's shape", PAPER, BOUND),
        _row("P6-wide", "packing, 200 leaves an execution", WIDE),
        _row("P6-demo", "packing, the demo's shape", DEMO),
    ]


if __name__ == "__main__":
    from tests.bench.__main__ import show

    show(run())
