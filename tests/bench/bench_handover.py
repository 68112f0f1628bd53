"""What a hand-over costs: an execution moves from cell to cell; `python -m tests.bench handover`.

Three settings: two embedded engines; two plain SGLang servers; one prefill server with two decode servers,
between which keys and values move by Mooncake over TCP.  Prompts grow by 8 sampled tokens and 40 others a
turn.  A token of the prompt that is not found in a cache is computed again.  The times are of tiny models
on CPUs, so of HTTP and of Mooncake's handshake more than of arithmetic: the shares are what counts.

SGLang takes 2.1 GB a server, and is set up by infra/sglang/sglang.sh where it is not.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ingest.engines.client import EngineClient
from ingest.engines.connecting import connect
from ingest.engines.pool import Server
from tests.support import sglang
from tests.support.engines import embedded_engine
from tests.support.handed_over import Asked, there_and_back
from tests.support.prefill_decode import SMALL, prefill_and
from tests.support.random_model import make_tiny_model

COMMAND = "python -m tests.bench handover"
START, MORE, VOCAB = 600, 40, 388
EMBEDDED = ("--context-tokens", "2048", "--concurrent-calls", "4")


def _rows(setting: str, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    rows, place = [], setting.replace(" ", "_").lower()
    for k, call in enumerate(asked, 1):
        what = f"{setting}: {call.what}"
        told = f"{what}, {call.cached} of {call.prompt} prompt tokens held"
        rows += [
            _row(f"{place}.{k}.held", told, 100 * call.cached / call.prompt, "% of prompt"),
            _row(f"{place}.{k}.first_token", f"{what}, to the first token", call.first_token_ms, "ms"),
        ]
    return rows


def _row(name: str, what: str, value: float | None, unit: str) -> dict[str, Any]:
    return {
        "id": f"handover.{name}", "what": what, "value": None if value is None else round(value, 1),
        "unit": unit, "bound": None, "holds": None, "command": COMMAND,
    }  # fmt: skip


def _measured(setting: str, servers: Sequence[Server]) -> list[dict[str, Any]]:
    return _rows(setting, asyncio.run(there_and_back(servers, vocab=VOCAB, start=START, more=MORE)))


def _embedded(folder: Path) -> list[dict[str, Any]]:
    model = make_tiny_model(folder / "model", vocab=VOCAB)
    with embedded_engine(model, *EMBEDDED) as one, embedded_engine(model, *EMBEDDED) as two:
        return _measured("embedded engines", [EngineClient(e.url, vocab_size=VOCAB) for e in (one, two)])


def _plain(folder: Path) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        one = stack.enter_context(sglang.running(folder / "0", *SMALL))
        two = stack.enter_context(sglang.running(folder / "1", *SMALL, model=one.model))
        return _measured("plain SGLang", [EngineClient(s.url, vocab_size=VOCAB) for s in (one, two)])


def _prefill_decode(folder: Path) -> list[dict[str, Any]]:
    with prefill_and(2, folder) as (addresses, _):
        return _measured("prefill and decode", [connect(a, vocab_size=VOCAB) for a in addresses])


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    rows = []
    for measured in (_embedded, _plain, _prefill_decode):
        with tempfile.TemporaryDirectory() as name:
            try:
                rows += measured(Path(name))
            except (pytest.skip.Exception, pytest.fail.Exception) as error:  # SGLang cannot be had, or start
                rows.append(_row(measured.__name__.removeprefix("_"), str(error), None, ""))
    return rows


def main() -> None:
    for row in run():
        value = "-" if row["value"] is None else f"{row['value']:,.1f}"
        print(f"{row['id']:40} {value:>10} {row['unit']:12} {row['what']}")


if __name__ == "__main__":
    main()
