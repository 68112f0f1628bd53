"""Prefill and decode servers of SGLang for tests: keys and values move by Mooncake over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lake.engine_address import EngineAddress
from tests.support import sglang
from tests.support.engines import free_port

SMALL = ("--max-total-tokens", "8192", "--mem-fraction-static", "0.7")
MOVES = ("--disaggregation-transfer-backend", "mooncake_tcp")
DECODE = (
    "--disaggregation-mode", "decode", *MOVES,
    "--disaggregation-decode-retraction-backup", "cpu_tensor",  # the default wants CUDA's host memory
    "--disaggregation-decode-enable-radix-cache",  # what it has is not sent again
)  # fmt: skip


def prefill_options() -> tuple[str, ...]:
    return "--disaggregation-mode", "prefill", *MOVES, "--disaggregation-bootstrap-port", str(free_port())


@contextmanager
def prefill_and(
    decode: int, folder: Path, model: Path | None = None
) -> Iterator[tuple[list[EngineAddress], list[sglang.Server]]]:
    """The addresses of so many decode servers with one prefill server, and all servers, that one first."""
    with ExitStack() as stack:
        started: list[sglang.Server] = []
        for k, mode in enumerate((prefill_options(), *[DECODE] * decode)):
            made = model or (started[0].model if started else None)
            running = sglang.running(folder / str(k), *SMALL, *mode, model=made)
            started.append(stack.enter_context(running))
        yield [EngineAddress(s.url, prefill=started[0].url) for s in started[1:]], started
