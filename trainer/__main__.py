"""The trainer of a run, as a process: `python -m trainer --run RUN --engine URL [--engine URL ...]`."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from lake.config import Config
from lake.layout import Run
from lake.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument(
        "--engine", required=True, action="append", help="URL of an engine that gets new weights"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the run stops us

    from trainer.backends.choose import make_backend
    from trainer.loader import Loader
    from trainer.stream import SET_NAME, StreamingTrainer

    run = Run(arguments.run)
    config: Config = run.config()
    log = run.open_log(config)
    loader = Loader(Store(run.lake), SET_NAME, config.trainer.tokens_per_micro_step)
    backend = make_backend(config, run.weights(0))
    trainer = StreamingTrainer(
        run, log, loader, backend, engines=arguments.engine, name=f"trainer-{os.getpid()}"
    )
    try:
        trainer.train(config.steps)
    finally:
        trainer.close()
        log.close()


if __name__ == "__main__":
    main()
