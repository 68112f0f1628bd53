"""The proxy of a run alone, for harnesses that somebody else starts; and it again where it dies."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from ingest.rollouts.settings import model_info
from lake import run_processes
from lake.beginning import announce, copy_model, open_folder
from lake.config import Config, ConfigError
from lake.holding import RunBusy, alone
from lake.layout import Run
from lake.metrics import write_targets
from lake.processes import Revived, free_port

LOOK_S = 0.2
LOOPBACK = "127.0.0.1"


class PortTaken(RuntimeError):
    """Another program listens at the port."""


def port_for(run: Run, port: int | None, host: str) -> int:
    """The port to listen at: the one given, else that of the last time, else any that is free.

    Raises PortTaken where the given one is not free.
    """
    last = urlsplit(run_processes.address_of(run, "proxy") or "").port
    for wanted in (port, last):
        if wanted is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
                return wanted
            except OSError as error:
                if wanted == port:
                    raise PortTaken(f"--port {port}: {error}; give another, or none") from error
    return free_port()


def serve(
    path: Path,
    config: Config,
    *,
    host: str,
    port: int | None,
    anywhere: bool,
    say: Callable[[str], None],
    listening: Callable[[str], None],
) -> int:
    """Serve until interrupted; how often the proxy was started again.  `listening` is told its URL.

    Makes the run's folder where there is none.  Raises ConfigError, EngineAway, PortTaken, ProcessDied,
    RunBusy where another proxy serves this run.
    """
    engines = config.rollout.engines
    if not engines:
        raise ConfigError("--engine is needed: a proxy alone has no engine of its own")
    for url in engines:
        model_info(url)
    run = Run(path)
    config = open_folder(run, config)
    copy_model(Path(config.model.weights), run.weights(0), setting="--model", with_weights=False)
    with (
        closing(run.open_log(config)) as log,
        alone(
            run.path / "proxy.lock",
            RunBusy(f"another `headrace proxy` or a rollout serves {run.path}; stop it first"),
        ),
    ):
        announce(log, run, config)
        port = port_for(run, port, host)
        further = ("--host", host, *(("--listen-anywhere",) if anywhere else ()))
        process = run_processes.proxy(run, engines, port, *further)
        near = LOOPBACK if host in {"0.0.0.0", "localhost"} else f"[{host}]" if ":" in host else host
        process.health = f"http://{near}:{port}/health"
        process.hint = ""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        revived, cells = Revived(process), run_processes.Cells(log)
        try:
            process.start()
            cells.started(process)
            process.wait_ready()
            url = f"http://{near}:{port}"
            run_processes.write_addresses(run, {"proxy": process.pid}, {"proxy": url})
            write_targets(run.path, "proxy", [f"{near}:{port}"])
            listening(f"http://{socket.gethostname()}:{port}" if host == "0.0.0.0" else url)
            while True:
                time.sleep(LOOK_S)
                if revived.look(say):
                    cells.started(process)
                    run_processes.write_addresses(run, {"proxy": process.pid}, {"proxy": url})
        except KeyboardInterrupt:
            say("stopping: calls that run get ten seconds")
        finally:
            process.ask_to_stop()
            process.end()
        return revived.restarts
