"""Raw calls to delta-coded calls: `python -m tests.bench matching`.

Executions of the paper's shape (`tests.bench.traces`): 400 calls, contexts up to 100k tokens; and one of 200
leaves.  One thread, by its CPU time, the best of several rounds; what is counted are raw tokens, inputs and
outputs.  The limit beside it is what numpy needs for comparing each input with the one before it, which a
matcher cannot do without: it reads both, and finds where they part.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ingest.matching import Matcher, encode, encode_rows
from tests.bench.traces import PAPER, WIDE, RawExecution, raw_calls, to_arrow

COMMAND = "python -m tests.bench matching"
MATCHED_MIN = 600.0  # Mtoken/s: P4
ROUNDS = 5
KNOWN_CALLS = 400


def _seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this thread, the best of ROUNDS."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best


def _tokens(raw: RawExecution) -> int:
    return len(raw.input_ids) + len(raw.output_ids)


def _one_by_one(raw: RawExecution) -> Matcher:
    matcher = Matcher()
    for call in range(raw.calls):
        matcher.insert(call, raw.input_of(call), raw.output_of(call))
    return matcher


def _compared(raw: RawExecution) -> int:
    """Compare each input with the one before it, as far as both go."""
    parted = 0
    for call in range(1, raw.calls):
        before, now = raw.input_of(call - 1), raw.input_of(call)
        n = min(len(before), len(now))
        parted += int((before[:n] != now[:n]).argmax())
    return parted


def _known_us(raw: RawExecution) -> float:
    """Microseconds of an insert whose beginning is known, as the proxy's: a conversation that only grows."""
    history, calls = raw.input_of(0), []
    for call in range(KNOWN_CALLS):
        output = raw.output_of(call % raw.calls)
        calls.append((history, output))
        history = np.concatenate([history, output, np.flip(output)])
    best = float("inf")
    for _ in range(ROUNDS):
        matcher = Matcher()
        began = time.thread_time()
        for call, (ids, output) in enumerate(calls):
            matcher.insert(call, ids, output, call - 1 if call else None)
        best = min(best, time.thread_time() - began)
    return 1e6 * best / KNOWN_CALLS


def _import_cost() -> tuple[float, float]:
    """(CPU seconds, MiB) that importing the compiled matcher costs a process that has numpy."""
    code = (
        "import numpy, pathlib, time\n"
        "def rss(): return int(pathlib.Path('/proc/self/statm').read_text().split()[1]) / 256\n"
        "began, before = time.process_time(), rss()\nimport ingest.matching\n"
        "print(time.process_time() - began, rss() - before)"
    )
    found = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        found.append(tuple(map(float, done.stdout.split())))
    seconds, mib = min(found)
    return seconds, mib


def run() -> list[dict[str, Any]]:
    paper, wide = [raw_calls(e) for e in range(4)], raw_calls(0, WIDE)
    rows = to_arrow(paper)
    total = sum(map(_tokens, paper))
    seconds = _seconds(
        lambda: [encode(r.input_ids, r.input_offsets, r.output_ids, r.output_offsets) for r in paper]
    )
    mixed = _seconds(lambda: encode_rows(rows))
    single = _seconds(lambda: _one_by_one(paper[0]))
    spread = _seconds(lambda: _one_by_one(wide))
    compared = _seconds(lambda: [_compared(r) for r in paper])
    kept = _one_by_one(paper[0])
    unique = _tokens(paper[0]) - _shared(paper[0])
    import_s, import_mib = _import_cost()

    def row(
        name: str, what: str, value: float, unit: str = "Mtoken/s", bound: float | None = None
    ) -> dict[str, Any]:
        holds = None if bound is None else value >= bound
        return {
            "id": name, "what": what, "value": value, "unit": unit, "bound": bound, "holds": holds,
            "command": COMMAND,
        }  # fmt: skip

    shape = f"{len(paper)} executions of {PAPER.calls} calls, {total / 1e6:.0f}M raw tokens"
    return [
        row(
            "P4",
            f"raw calls -> parents and shared lengths, {shape}",
            total / seconds / 1e6,
            bound=MATCHED_MIN,
        ),
        row(
            "P4.rows",
            "the same from an Arrow table of all executions",
            total / mixed / 1e6,
            bound=MATCHED_MIN,
        ),
        row(
            "P4.single",
            "call by call, as the import does",
            _tokens(paper[0]) / single / 1e6,
            bound=MATCHED_MIN,
        ),
        row("P4.wide", "call by call, 200 leaves", _tokens(wide) / spread / 1e6, bound=MATCHED_MIN),
        row("P4.limit", "the limit: numpy compares each input with the one before", total / compared / 1e6),
        row("P4.bytes", "  in bytes: what a matcher reads of both", 8 * total / compared / 1e9, "GB/s"),
        row("P4.known", "insert of a call that extends one, `known=`", _known_us(paper[0]), "us"),
        row("P4.memory", "memory of a matcher, a token that some call added", kept.nbytes / unique, "B"),
        row("P4.import", "importing it: numba, compiled code from the disk", import_s, "s CPU"),
        row("P4.import.memory", "  memory", import_mib, "MiB"),
    ]


def _shared(raw: RawExecution) -> int:
    _, shared = encode(raw.input_ids, raw.input_offsets, raw.output_ids, raw.output_offsets)
    return int(shared.sum())
