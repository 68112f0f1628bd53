"""P9: what is read to read one group, 32 x 16 executions interleaved: `python -m tests.bench reads`.

32 groups of 16 executions are at work at once and take turns call by call; when a group is complete
the next begins, and its calls are read as a worker reads them, by one handle of the table.  Commits
hold COMMIT_CALLS calls.  Calls of 2,000 new tokens are those of long-running agents; of short ones
several groups share a row group (`lake.parquet.SHARE_BYTES`), which costs less than one of their own.
Token bytes (ids and log-probabilities, uncompressed) are read over those of the group; file bytes are
column chunks and footers that were read, over the group's share of the files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from lake import events as ev
from lake.log import Record
from lake.optimize import optimize_table
from lake.store import Store, Table
from lake.tables import BYTES_AS, SCHEMAS, to_table
from lake.wire import encode
from tests.support.load import Shape, Texts, call

COMMAND = "python -m tests.bench reads"
AT_ONCE, SIZE, GROUPS = 32, 16, 48
COMMIT_CALLS = 64
"""Two calls of each group: what a worker commits that waits for nothing."""
BOUND = 2.0
SHAPES = {
    "": Shape(AT_ONCE, SIZE, calls=6, context=1500, output=500),
    ".short": Shape(AT_ONCE, SIZE, calls=6, context=90, output=30),
}


@dataclass
class Read:
    """One group's rows."""

    own: int  # bytes of its tokens
    token_bytes: int
    file_bytes: int
    seconds: float


def _turns(shape: Shape) -> Iterator[tuple[str, str, int, bool]]:
    """(group, execution, call, whether the group is complete with it), AT_ONCE groups at once."""
    rng = np.random.default_rng(9)
    waiting = [f"g-{n:06d}" for n in reversed(range(GROUPS))]
    lengths: dict[str, int] = {}  # some groups take longer: they do not all end at once
    done: dict[str, int] = {}
    while waiting or done:
        while waiting and len(done) < AT_ONCE:
            group = waiting.pop()
            done[group], lengths[group] = 0, int(rng.integers(shape.calls // 2, shape.calls * 3 // 2 + 1))
        for index in range(shape.size):
            for group, number in done.items():
                last = index == shape.size - 1 and number == lengths[group] - 1
                yield group, f"{group}.{index}", number, last
        done = {g: n + 1 for g, n in done.items() if n + 1 < lengths[g]}


def _record(event: ev.ModelCalled, offset: int) -> Record:
    headers, value = encode(event)
    return Record("calls", 0, offset, event.key, headers, value, 1_795_000_000_000_000 + offset)


def _read(table: Table, group: str) -> Read:
    before = table.reads.token_bytes, table.reads.chunk_bytes + table.reads.footer_bytes
    began = time.perf_counter()
    rows = table.read([group])
    seconds = time.perf_counter() - began
    own = sum(4 * (pc.sum(pc.list_value_length(rows[name])).as_py() or 0) for name in BYTES_AS)
    after = table.reads.token_bytes, table.reads.chunk_bytes + table.reads.footer_bytes
    return Read(own, after[0] - before[0], after[1] - before[1], seconds)


def _fill(table: Table, shape: Shape) -> list[Read]:
    """Commit every call, and read each group when it is complete."""
    texts, found, complete = Texts(9), [], []
    pairs: list[tuple[Record, ev.Event]] = []
    offset = 0
    for group, execution, number, last in _turns(shape):
        event = call(shape, texts, group, execution, number)
        pairs.append((_record(event, offset), event))
        offset += 1
        complete += [group] * last
        if len(pairs) == COMMIT_CALLS:
            table.append(to_table("calls", pairs), {"log/calls/0": offset})
            pairs = []
            found += [_read(table, g) for g in complete]
            complete = []
    if pairs:
        table.append(to_table("calls", pairs), {"log/calls/0": offset})
    return found + [_read(table, g) for g in complete]


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    return {
        "id": f"reads.{name}", "what": what, "value": round(value, 3), "unit": unit, "bound": bound,
        "holds": None if bound is None else value <= bound, "command": COMMAND,
    }  # fmt: skip


def _rows(name: str, when: str, reads: list[Read], table: Table, *, bounded: bool) -> list[dict[str, Any]]:
    tokens = sum(r.own for r in reads)
    in_files = sum(r.file_bytes for r in reads) / sum(e.size for e in table.entries())
    size = f"{tokens / len(reads) / 1e6:.2f} MB of tokens from {len(table.entries())} files"
    bound = BOUND if bounded else None
    worst = max(r.token_bytes / r.own for r in reads)
    took = sorted(r.seconds for r in reads)
    return [
        _row(f"tokens{name}", f"token bytes, the worst group; {when}", worst, "times", bound),
        _row(f"files{name}", f"file bytes, all groups; {when}", in_files, "times"),
        _row(f"p50{name}", f"read {size}; {when}", 1e3 * took[len(took) // 2], "ms"),
    ]


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    rows = []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            store = Store(str(Path(folder)))
            table = store.table("events/calls", SCHEMAS["calls"])
            when = f"calls of {shape.context + shape.output} tokens"
            rows += _rows(name, when, _fill(table, shape), table, bounded=not name)
            optimize_table(store, "events/calls", retain_h=0)
            fresh = store.table("events/calls", SCHEMAS["calls"])
            reads = [_read(fresh, f"g-{n:06d}") for n in range(GROUPS)]
            rows += _rows(f"{name}.optimized", f"{when}, optimized", reads, fresh, bounded=True)
    return rows


if __name__ == "__main__":
    for row in run():
        print(f"{row['id']:30} {row['value']:10} {row['unit']:8} {row['what']}")
