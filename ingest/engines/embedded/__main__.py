"""`python -m ingest.engines.embedded --model DIR --port P`: the embedded engine as a process.

Ends with status 0 on SIGTERM or SIGINT, 2 on wrong use, 1 when the model thread dies.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ingest.engines.embedded.batch import Batch

SLOTS_PER_CALL = 4  # where memory allows: as many prefixes are held as three times the running calls


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ingest.engines.embedded", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder (Qwen3ForCausalLM)")
    parser.add_argument("--weight-version", type=int, default=0, help="which version these weights are")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--concurrent-calls", type=int, default=128, help="calls that run at once")
    parser.add_argument("--queue-calls", type=int, default=1024, help="calls that may wait beyond them")
    parser.add_argument("--context-tokens", type=int, default=512, help="prompt and output together")
    parser.add_argument("--cache-mib", type=int, default=1024, help="memory for keys and values")
    parser.add_argument("--threads", type=int, default=1, help="of the model's arithmetic")
    parser.add_argument("--seed", type=int, default=0, help="for calls without a sampling_seed")
    parser.add_argument("--api-key", default="", help="asked for as a bearer token")
    a = parser.parse_args()
    for name, value, low, high in (
        ("--port", a.port, 1, 65535),
        ("--weight-version", a.weight_version, 0, 2**31 - 1),
        ("--concurrent-calls", a.concurrent_calls, 1, 1024),
        ("--queue-calls", a.queue_calls, 0, 65536),
        ("--context-tokens", a.context_tokens, 2, 1 << 20),
        ("--threads", a.threads, 1, 256),
        ("--cache-mib", a.cache_mib, 1, 1 << 24),
    ):
        if not low <= value <= high:
            parser.error(f"{name} is {value}, {low} to {high} is needed")
    return a


def _batch(a: argparse.Namespace) -> Batch:
    """The model, loaded and its kernels compiled.  Raises WeightsError."""
    from ingest.engines.embedded.batch import Batch, Call
    from ingest.engines.embedded.decoder import Decoder
    from ingest.engines.embedded.weights import WeightsError, read_shape, read_weights

    shape = read_shape(a.model)
    if a.context_tokens > shape.max_position_embeddings:
        raise WeightsError(
            f"--context-tokens is {a.context_tokens}, above the model's {shape.max_position_embeddings}"
        )
    slots = (a.cache_mib << 20) // Decoder.bytes_per_slot(shape, a.context_tokens)
    if slots < a.concurrent_calls:
        raise WeightsError(
            f"--cache-mib {a.cache_mib} holds {slots} calls of {a.context_tokens} tokens, "
            f"--concurrent-calls is {a.concurrent_calls}; raise the first or lower the second"
        )
    batch = Batch(
        read_weights(a.model, shape),
        version=a.weight_version,
        slots=min(slots, SLOTS_PER_CALL * a.concurrent_calls),
        places=a.context_tokens,
        calls_max=a.concurrent_calls,
    )
    batch.add(Call(rid="", prompt=np.zeros(1, np.int32), new_tokens_max=1))
    batch.step()
    batch.slots.flush()
    return batch


def main() -> int:
    a = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", str(a.threads))
    import torch
    import uvicorn

    from ingest.engines.embedded.engine import Engine
    from ingest.engines.embedded.http import Keyed
    from ingest.engines.embedded.server import application
    from ingest.engines.embedded.weights import WeightsError

    torch.set_num_threads(a.threads)
    # the model's thread gives the interpreter's lock up often; 5 ms, the default, is half a step
    sys.setswitchinterval(5e-4)
    died = False

    def on_death() -> None:
        nonlocal died
        died, http.should_exit = True, True

    try:
        engine = Engine(a.model, _batch(a), queue_max=a.queue_calls, seed=a.seed, on_death=on_death)
    except WeightsError as error:
        print(f"embedded engine: {error}", file=sys.stderr)
        return 2
    app = application(engine)
    config = uvicorn.Config(
        Keyed(app, a.api_key) if a.api_key else app,
        host=a.host,
        port=a.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
    )
    http = uvicorn.Server(config)
    http.run()
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
