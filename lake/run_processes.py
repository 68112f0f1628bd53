"""The processes of a run: how each is started, for every command that starts some of them.

workers, engine, proxy, (trainer,) runner
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from lake import sglang
from lake.config import Config
from lake.events import CellEvent
from lake.layout import Run
from lake.log import Log, now_us
from lake.processes import Process


def workers(run: Run, config: Config) -> list[Process]:
    """The ingest workers, each with its share of the lanes."""
    of = config.ingest.workers
    return [
        Process(
            f"worker-{index}" if index else "worker",
            (
                *("ingest.worker", "--run", str(run.path), "--index", str(index), "--of", str(of)),
                *("--metrics-port", "0"),
            ),
            run.output(f"worker-{index}" if index else "worker"),
        )
        for index in range(of)
    ]


def check_engine(config: Config) -> None:
    """Raises ConfigError where the engine that the settings say is not installed."""
    if config.engine.kind == "sglang":
        sglang.interpreter(config)


def engine(run: Run, config: Config, version: int, port: int) -> Process:
    """The engine that the settings say, on the weights of a version.  Raises ConfigError."""
    e = config.engine
    if e.kind == "sglang":
        return Process(
            "engine",
            sglang.arguments(config, run.weights(version), version, port),
            run.output("engine"),
            f"http://127.0.0.1:{port}/ready",  # /health computes a token, and hangs while it is paused
            python=sglang.interpreter(config),
            environment=sglang.environment(config, run.weights(version)),
            ready_s_max=sglang.READY_S_MAX,
            children=True,
        )
    return Process(
        "engine",
        (
            "ingest.engines.embedded",
            *("--model", str(run.weights(version)), "--weight-version", str(version)),
            *("--port", str(port), "--concurrent-calls", str(e.concurrent_calls)),
            *("--context-tokens", str(e.context_tokens), "--threads", str(e.threads)),
            *("--seed", str(config.seed)),
        ),
        run.output("engine"),
        f"http://127.0.0.1:{port}/health",
    )


def proxy(run: Run, engines: Sequence[str], port: int, *arguments: str) -> Process:
    """The capture proxy in front of these engines; further `arguments` as they are."""
    urls = [word for url in engines for word in ("--engine", url)]
    return Process(
        "proxy",
        ("ingest.proxy", "--run", str(run.path), *urls, "--port", str(port), *arguments),
        run.output("proxy"),
        f"http://127.0.0.1:{port}/health",
    )


def runner(run: Run, proxy_url: str) -> Process:
    """The runner, which launches the executions of what is dispatched."""
    return Process(
        "runner",
        ("ingest.rollouts.runner", "--run", str(run.path), "--proxy", proxy_url),
        run.output("runner"),
    )


class Cells:
    """Tells the log what becomes of the processes of one session."""

    def __init__(self, log: Log) -> None:
        self._log, self._session = log, f"{now_us():x}"

    def tell(self, name: str, change: str, detail: str = "") -> None:
        """Append it.  Raises LogError."""
        self._log.append(
            [CellEvent(time_us=now_us(), cell=name, session=self._session, change=change, detail=detail)]
        )

    def started(self, process: Process) -> None:
        """A process runs, under its pid."""
        self.tell(process.name, "started", json.dumps({"pid": process.pid}))


def write_addresses(run: Run, pids: dict[str, int], addresses: dict[str, str]) -> None:
    """Note who runs, and where they listen, for other commands: RUN/processes.json."""
    path = run.path / "processes.json"
    half = path.with_suffix(".part")
    half.write_text(json.dumps({"pids": pids, "addresses": addresses}))
    half.replace(path)


def address_of(run: Run, process: str) -> str | None:
    """Where a process of the run listened last; None where none did.  Whether it does now is not known."""
    try:
        found = json.loads((run.path / "processes.json").read_text())["addresses"].get(process)
    except (OSError, ValueError, KeyError):
        return None
    return str(found) if found else None
