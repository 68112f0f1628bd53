"""What an event costs on its way into the lake: `python -m tests.bench wire`.

One thread; a call of 2,500 unique tokens (2,000 of context, 500 sampled with log-probabilities), 12 KB.
The best of several rounds, by the CPU time of the thread: others on the machine cost nothing then.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from lake.blobs import Blobs
from lake.events import ModelCalled, VersionSpan, ids_to_bytes, logprobs_to_bytes
from lake.log import Record
from lake.tables import to_table
from lake.wire import decode, encode, event_of, size_of

COMMAND = "python -m tests.bench wire"
CONTEXT, OUTPUT = 2_000, 500
EVENTS = 1_000
ROUNDS = 7
DECODED_US_MAX = 100.0  # of the 312 us that 8 Mtoken/s leave for an event


def _call(number: int, context: int = CONTEXT, output: int = OUTPUT) -> ModelCalled:
    rng = np.random.default_rng(number)
    return ModelCalled(
        time_us=1_795_000_000_000_000, group_id=f"g-{number % 16:06d}", execution_id=f"g-{number % 16:06d}.3",
        call_id=number, role="main", parent_call_id=None if number == 0 else number - 1,
        shared_len=0 if number == 0 else 9, context_ids=ids_to_bytes(rng.integers(0, 150_000, context)),
        output_ids=ids_to_bytes(rng.integers(0, 150_000, output)),
        output_logprobs=logprobs_to_bytes(-rng.random(output)), relation="extends",
        spans=(VersionSpan(3, 0, output),), engine="http://127.0.0.1:30000", sampling='{"top_p": 0.95}',
        started_us=1_795_000_000_000_000, finished_us=1_795_000_000_100_000,
    )  # fmt: skip


def _us(work: Callable[[int], object], count: int = EVENTS) -> float:
    """Microseconds of `work(i)`, the best round of several."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for i in range(count):
            work(i)
        best = min(best, time.thread_time() - began)
    return 1e6 * best / count


def run() -> list[dict[str, Any]]:
    events = [_call(n) for n in range(EVENTS)]
    entries = [encode(e) for e in events]
    records = [Record("calls", 0, n, e.key, *entries[n], 1) for n, e in enumerate(events)]
    bare = msgspec.msgpack.Decoder(ModelCalled)
    pairs = list(zip(records, events, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        blobs = Blobs(f"{folder}/blobs")
        large = encode(_call(1, 1_250_000), blobs)
        claimed_us = _us(lambda _: decode(*large, blobs), 5)
    decoded_us = _us(lambda n: event_of(records[n]))
    row_us = _us(lambda _: to_table("calls", pairs), 1) / EVENTS

    def row(
        name: str, what: str, value: float, unit: str = "us", bound: float | None = None
    ) -> dict[str, Any]:
        holds = None if bound is None else value <= bound
        return {
            "id": f"wire.{name}", "what": what, "value": value, "unit": unit, "bound": bound, "holds": holds,
            "command": COMMAND,
        }  # fmt: skip

    return [
        row("read", "record -> checked event, 2,500 tokens", decoded_us, bound=DECODED_US_MAX),
        row("read.msgpack", "  of it msgpack alone", _us(lambda n: bare.decode(records[n].value))),
        row("read.check", "  of it the check", _us(lambda n: events[n].check())),
        row("read.tokens", "the same in unique tokens", (CONTEXT + OUTPUT) / decoded_us, "Mtoken/s"),
        row("size", "size of a record with its claims", _us(lambda n: size_of(records[n]))),
        row("rows", "checked events -> Arrow rows, an event", row_us),
        row("write", "event -> record, checked and read back", _us(lambda n: encode(events[n]))),
        row(
            "read.claimed",
            "record -> event with 5 MB claimed (read, sha256, checked)",
            claimed_us / 1e3,
            "ms",
        ),
    ]
