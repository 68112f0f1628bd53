"""P1: bytes per unique token on real text, in the log and in the lake: `python -m tests.bench bytes`.

About 6 MB of Python sources and licence texts, tokenized by a BPE of 32,768 tokens that was trained on
other files of the kind (tests/support/real_text.py), as calls of interleaved executions: 3 of 4 new tokens
are context, 1 is sampled and has a random float32 log-probability.  The log is a real Kafka broker's
segment files (batches of 16 calls, compressed as our producer does); the lake is the table of calls,
as a live worker commits it and after `headrace lake optimize`.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.tables import app_id
from lake import events as ev
from lake.log import Log, open_log
from lake.optimize import optimize_table
from lake.store import Store, Table
from lake.tables import SCHEMAS, to_table
from lake.wire import event_of
from tests.support import kafka
from tests.support.real_text import VOCABULARY, token_ids

COMMAND = "python -m tests.bench bytes"
LOG_MAX, LAKE_MAX = 3.5, 2.2
CALL_TOKENS = 1000
"""New tokens of a call, on average."""
EXECUTIONS, GROUP_SIZE = 32, 8
COMMIT_CALLS = 128
APPENDED = 16
SPLIT = "BYTE_STREAM_SPLIT"


def calls(ids: npt.NDArray[np.int32], rng: np.random.Generator) -> Iterator[ev.ModelCalled]:
    """Calls of executions that take turns, each with its own stretch of the text."""
    texts = [list(part) for part in np.array_split(ids, EXECUTIONS)]
    ends, at, made = [0] * EXECUTIONS, [0] * EXECUTIONS, [0] * EXECUTIONS
    number = 0
    while any(at[i] < len(text) for i, text in enumerate(texts)):
        i, number = number % EXECUTIONS, number + 1
        size = int(rng.gamma(4, CALL_TOKENS / 4)) + 8
        new = np.asarray(texts[i][at[i] : at[i] + size], np.int32)
        if not len(new):
            continue
        at[i] += len(new)
        n_output = len(new) // 4
        call_id, group = made[i], f"g-{i // GROUP_SIZE:06d}"
        made[i] += 1
        yield ev.ModelCalled(
            time_us=1_795_000_000_000_000 + 40_000 * number,
            group_id=group,
            execution_id=f"{group}.{i % GROUP_SIZE}",
            call_id=call_id,
            role="main",
            parent_call_id=call_id - 1 if call_id else None,
            shared_len=ends[i],
            context_ids=ev.ids_to_bytes(new[n_output:]),
            output_ids=ev.ids_to_bytes(new[:n_output]),
            output_logprobs=ev.logprobs_to_bytes(-rng.exponential(0.5, n_output)),
            relation="extends" if call_id else "restarts",
            spans=(ev.VersionSpan(number // 500, 0, n_output),),
        )
        ends[i] += len(new)


def _segments(folder: Path, topic: str) -> int:
    """Bytes of a topic's segment files in a broker's folder."""
    return sum(p.stat().st_size for p in folder.rglob("*.log") if p.parent.name.rpartition("-")[0] == topic)


def _ingest(log: Log, table: Table) -> None:
    """As a worker does, COMMIT_CALLS calls a commit."""
    reader = log.reader({("calls", 0): 0})
    end, pending = log.end_offsets("calls")[0], []
    while (table.offset(app_id("calls", 0)) or 0) < end:
        pending += reader.poll(5.0, 2000)
        while len(pending) >= COMMIT_CALLS or (pending and pending[-1].offset == end - 1):
            part, pending = pending[:COMMIT_CALLS], pending[COMMIT_CALLS:]
            pairs = [(record, event_of(record, log.blobs)) for record in part]
            table.append(to_table("calls", pairs), {app_id("calls", 0): part[-1].offset + 1})
    reader.close()


def _lake_bytes(table: Table) -> tuple[int, int]:
    """(bytes of the files without the log-probabilities, bytes of those)."""
    table.refresh()
    whole = logprobs = 0
    for path in table.files():
        whole += Path(path).stat().st_size
        metadata = pq.read_metadata(path)
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            columns = [group.column(c) for c in range(group.num_columns)]
            logprobs += sum(
                c.total_compressed_size for c in columns if c.path_in_schema.startswith("output_logprobs")
            )
    return whole - logprobs, logprobs


def _column(values: npt.NDArray[np.float32], encoding: str) -> float:
    """Bytes a value of a column of log-probabilities of its own, 250 to a row."""
    count = len(values) // 250 * 250
    offsets = pa.array(np.arange(0, count + 1, 250, dtype=np.int32))
    table = pa.table({"x": pa.ListArray.from_arrays(offsets, pa.array(values[:count]))})
    sink = io.BytesIO()
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=False, write_statistics=False,
        column_encoding={"x.list.element": encoding}, row_group_size=2000, store_schema=False,
    )  # fmt: skip
    return len(sink.getvalue()) / count


def bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rounded to bfloat16 (nearest, ties to even), held as float32."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _row(name: str, what: str, value: float, unit: str, bound: float | None = None) -> dict[str, Any]:
    return {
        "id": f"bytes.{name}", "what": what, "value": round(value, 3), "unit": unit, "bound": bound,
        "holds": None if bound is None else value <= bound, "command": COMMAND,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    ids, characters = token_ids()
    rng = np.random.default_rng(1)
    events = list(calls(ids, rng))
    sampled = sum(len(e.output_ids) // 4 for e in events)
    folder = Path(tempfile.mkdtemp())
    store = Store(str(folder / "lake"))
    table = store.table("events/calls", SCHEMAS["calls"])
    try:
        with kafka.running(folder / "kafka") as broker:
            log = open_log(f"kafka://{broker.address}/bytes?partitions=1")
            for at in range(0, len(events), APPENDED):
                log.append(events[at : at + APPENDED])
            in_log = _segments(folder / "kafka", "bytes.calls")
            _ingest(log, table)
            log.close()
        live, live_logprobs = _lake_bytes(table)
        optimize_table(store, "events/calls", retain_h=0)
        merged, merged_logprobs = _lake_bytes(table)
        rows = table.read().num_rows
    finally:
        shutil.rmtree(folder)
    if rows != len(events):
        raise RuntimeError(f"{len(events)} calls went into the log, {rows} are in the lake")
    n, token, value = len(ids), "B/token", "B/log-probability"
    random = -rng.exponential(0.5, 1 << 20).astype(np.float32)
    text = f"{characters / 1e6:.1f} MB of text, {n} tokens of {VOCABULARY} kinds, {len(events)} calls"
    return [
        _row("text", f"characters a token: {text}", characters / n, "characters"),
        _row("log", "log (Kafka segments), with log-probabilities", in_log / n, token, LOG_MAX),
        _row("lake", "lake without log-probabilities, optimized", merged / n, token, LAKE_MAX),
        _row("lake.live", f"the same as committed, {COMMIT_CALLS} calls a commit", live / n, token, LAKE_MAX),
        _row("lake.whole", "lake with log-probabilities, optimized", (merged + merged_logprobs) / n, token),
        _row("lake.whole.live", "the same as committed", (live + live_logprobs) / n, token),
        _row("logprobs", "log-probabilities in the lake, a sampled token", merged_logprobs / sampled, value),
        _row("logprobs.plain", "random float32: PLAIN, zstd (the lake's)", _column(random, "PLAIN"), value),
        _row("logprobs.bss", "random float32: BYTE_STREAM_SPLIT, zstd", _column(random, SPLIT), value),
        _row("logprobs.bf16", "rounded to bf16: PLAIN, zstd", _column(bf16(random), "PLAIN"), value),
        _row("logprobs.bf16.bss", "the same: BYTE_STREAM_SPLIT, zstd", _column(bf16(random), SPLIT), value),
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['id']:26} {row['value']:10} {row['unit']:18} {row['what']}")
