"""Raw calls from files into a lake: `python -m tests.bench import`.

Executions of the paper's shape (`tests.bench.traces`), their rows between each other in pairs.  Each case is
a process of its own, from the first byte of the file to the last commit, by its CPU time and by the clock;
its largest memory is that of the process.  Beside them stand the limits: what msgspec needs to decode
the same lines with their lists of ids, and what Arrow needs to read the same Parquet, on one core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.traces import raw_calls, to_arrow

COMMAND = "python -m tests.bench import"
EXECUTIONS = 4
LINES_DECODED = 200
IMPORT = """
import json, sys, time
from ingest.importing.run import import_calls
path, lake, open_bytes, few = sys.argv[1:]
import_calls([few], lake + "-few")  # what is loaded at the first import is not counted with the tokens
start, began = time.process_time(), time.perf_counter()
done = import_calls([path], lake, open_bytes=int(open_bytes))
cpu, wall = time.process_time() - start, time.perf_counter() - began
peak = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 1024
print(json.dumps({"start": start, "cpu": cpu, "wall": wall, "peak": peak, "tokens": done.raw_tokens,
                  "parked": done.parked}))
"""


class _Call(msgspec.Struct):
    """A line decoded as its types say, with lists."""

    group_id: str
    execution_id: str
    call_id: int
    input_ids: list[int]
    output_ids: list[int]
    output_logprobs: list[float]


def _rows() -> pa.Table:
    """The calls of all executions, one of each in turn."""
    raws = [raw_calls(e) for e in range(EXECUTIONS)]
    table = to_arrow(raws)
    calls = raws[0].calls
    order = np.arange(EXECUTIONS * calls).reshape(EXECUTIONS, calls)
    pairs = order.reshape(EXECUTIONS // 2, 2, calls).transpose(0, 2, 1).ravel()
    return table.take(pa.array(pairs))


def _lines(table: pa.Table) -> Iterator[bytes]:
    for batch in table.to_batches(max_chunksize=20):
        for row in batch.to_pylist():
            yield msgspec.json.encode(row) + b"\n"


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _read(path: Path) -> None:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for _ in file.iter_batches(32, columns=["input_ids", "output_ids"], use_threads=False):
            pass


def _imported(path: Path, lake: Path, open_bytes: int = 256 << 20) -> dict[str, float]:
    few = str(lake.with_name("few.jsonl"))
    command = [sys.executable, "-c", IMPORT, str(path), str(lake), str(open_bytes), few]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _files(folder: Path) -> dict[str, Path]:
    """The same rows as JSON lines, as these by zstd, and as Parquet."""
    table = _rows()
    paths = {
        "jsonl": folder / "calls.jsonl",
        "zstd": folder / "calls.zst",
        "parquet": folder / "calls.parquet",
    }
    with paths["jsonl"].open("wb") as plain, pa.CompressedOutputStream(str(paths["zstd"]), "zstd") as packed:
        for number, line in enumerate(_lines(table)):
            plain.write(line)
            packed.write(line)
            if number == 0:
                (folder / "few.jsonl").write_bytes(line)
    pq.write_table(table, paths["parquet"], compression="zstd", use_dictionary=False, row_group_size=200)
    return paths


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _files(folder)
        found = {kind: _imported(path, folder / f"lake-{kind}") for kind, path in paths.items()}
        found["parked"] = _imported(paths["parquet"], folder / "lake-parked", 3 << 20)
        with paths["jsonl"].open("rb") as file:
            lines = [file.readline() for _ in range(LINES_DECODED)]
        decoder = msgspec.json.Decoder(_Call)
        tokens = sum(len(c.input_ids) + len(c.output_ids) for c in map(decoder.decode, lines))
        decoding = _seconds(lambda: [decoder.decode(line) for line in lines])
        reading = _seconds(lambda: _read(paths["parquet"]))
        bytes_of = {kind: path.stat().st_size for kind, path in paths.items()}
    total = found["jsonl"]["tokens"]
    assert all(each["tokens"] == total for each in found.values())

    def row(name: str, what: str, value: float, unit: str) -> dict[str, Any]:
        return {
            "id": f"import.{name}", "what": what, "value": value, "unit": unit, "bound": None, "holds": None,
            "command": COMMAND,
        }  # fmt: skip

    rows = []
    for kind, what in (
        ("jsonl", "JSON lines -> lake"),
        ("zstd", "JSON lines in zstd -> lake"),
        ("parquet", "Parquet -> lake"),
        ("parked", "Parquet -> lake, with room for one execution of two"),
    ):
        each = found[kind]
        rows.append(
            row(kind, f"{what}, {total / 1e6:.0f}M raw tokens", total / each["cpu"] / 1e6, "Mtoken/s CPU")
        )
        rows.append(row(f"{kind}.wall", "  by the clock", total / each["wall"] / 1e6, "Mtoken/s"))
        rows.append(row(f"{kind}.memory", "  largest memory of the process", each["peak"], "MiB"))
        if kind in bytes_of:
            rows.append(row(f"{kind}.bytes", "  of the file, a raw token", bytes_of[kind] / total, "B"))
    rows.append(row("start", "a process that imports one call", found["jsonl"]["start"], "s CPU"))
    rows.append(row("parked.times", "  executions parked and restored", found["parked"]["parked"], "times"))
    rows.append(
        row("limit.jsonl", "msgspec alone, lists of ids decoded", tokens / decoding / 1e6, "Mtoken/s CPU")
    )
    rows.append(
        row("limit.parquet", "Arrow alone, the lists of ids read", total / reading / 1e6, "Mtoken/s CPU")
    )
    return rows
