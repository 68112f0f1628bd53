"""One run of one client: scratch HOME, scripted engine, real proxy over a SQLite log, then the lake.

Nothing of this process's environment reaches the client but the path; what it would fetch from elsewhere
goes to a port where nobody listens.  Its whole process group is ended after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tokenizers import Tokenizer

from ingest.identity import sign
from ingest.proxy.calls import Limits
from ingest.rollouts.command_line import HARNESS_NAMES, CommandLine, dialect_environment
from lake import events as ev
from lake.config import Config, override
from lake.layout import Run
from lake.log import now_us
from tests.harnesses.install import installed
from tests.harnesses.scenario import TASK, Line, Script
from tests.support.ingested import work
from tests.support.running_proxy import LIMITS, SECRET, running_proxy
from tests.support.scripted_engine import Asked, ScriptedEngine
from tests.support.tiny_model import write_model_folder

GROUP, MODEL = "g-1", "policy"
HARNESS_S = 240
AT_ONCE = 3
"""Runs of a client: most of a command line's time is its own start."""
NOWHERE = "http://127.0.0.1:9"
CALL_PATH = re.compile(r"/(chat/completions|responses|messages)$")


@dataclass(frozen=True)
class Place:
    """Where a client runs: its own folders, its installed folder, and what it is told of the proxy.

    `url` ends with the execution's name, without `/v1`; `task` is what it shall do.
    """

    home: Path
    project: Path
    installed: Path
    url: str
    key: str
    task: str


Told = tuple[tuple[str, str, str], ...]
"""(role, line's label, relation of its call), call by call."""


@dataclass(frozen=True)
class Flight:
    """One run of a client: what the policy says, and what the client is expected to make of it.

    `script` makes a fresh one.  `expected` is in the order of asking where that is certain; `optional` are
    calls that may come too.  `settings` go to the client's own functions, `seconds_max` among them is for
    the run.
    """

    script: Callable[[], Script]
    expected: Told
    exit: int = 0
    optional: Told = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    in_any_order: bool = False


@dataclass(frozen=True)
class Client:
    """A harness.  `command`, `environment`, `files` (by path under HOME) get the place and the settings."""

    name: str
    command: Callable[[Place, Mapping[str, Any]], Sequence[str]]
    environment: Callable[[Place, Mapping[str, Any]], Mapping[str, str]]
    flights: Mapping[str, Flight]
    files: Callable[[Place, Mapping[str, Any]], Mapping[str, str]] = lambda *_: {}
    rollout: str = ""
    """The value of `--harness` by which `headrace rollout` starts it; `started` makes the command of it."""
    home: Mapping[str, str] = field(default_factory=dict)
    """What lies in its HOME, by path: the FOLDER of `headrace rollout --home FOLDER`."""
    seconds_max: float = HARNESS_S
    also: Callable[[Any], list[str]] = lambda _: []
    """What must hold of this client's runs only: observed run -> what does not."""


def started(line: str, place: Place, *program: str) -> list[str]:
    """The words of a `--harness` line, its first replaced by the installed program."""
    values = {"prompt": place.task, "base_url": place.url, "api_key": place.key, "model": MODEL}
    return [*program, *CommandLine.parse(line, HARNESS_NAMES, "rollout").fill(values)[1:]]


def told(place: Place) -> dict[str, str]:
    """Base URL and key as `headrace rollout` puts them into the environment."""
    return dialect_environment(place.url, place.key, MODEL)


@dataclass
class Wire:
    """A request of the client as it came: `order` counts bodies that were read whole.

    `began` and `ended`: seconds of a clock of this process; `ended` 0 where the reply was not written whole.
    """

    path: str
    headers: dict[str, str]
    body: bytes = b""
    order: int = -1
    status: int = 0
    began: float = 0.0
    ended: float = 0.0


class Recording:
    """Keeps what passes through an ASGI application."""

    def __init__(self) -> None:
        self.requests: list[Wire] = []
        self._read = 0

    def wrap(self, app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            wire = Wire(scope["path"], headers, began=time.monotonic())
            self.requests.append(wire)

            async def received() -> Message:
                message = await receive()
                if message["type"] == "http.request":
                    wire.body += message.get("body", b"")
                    if wire.order < 0 and not message.get("more_body", False):
                        wire.order, self._read = self._read, self._read + 1
                return message

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    wire.status = message["status"]
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    wire.ended = time.monotonic()

            await app(scope, received, sent)

        return wrapped


@dataclass
class Outcome:
    """What a run left: the client's exit and output, the engine's and the wire's records, and its lake.

    `asked`: (who asked, what was said, the engine's record).  `wires`: every request of the client.
    """

    client: Client
    name: str
    run: Run
    asked: list[tuple[str, Line, Asked]]
    wires: list[Wire]
    exit: int
    output: str
    seconds: float
    calls_closed: int

    @property
    def flight(self) -> Flight:
        return self.client.flights[self.name]

    @property
    def calls(self) -> list[Wire]:
        """Requests for an answer, in the order in which the proxy took them up."""
        found = [w for w in self.wires if CALL_PATH.search(w.path) and w.order >= 0]
        return sorted(found, key=lambda w: w.order)


def limits(**changes: Any) -> Limits:
    """Wide ones: a client's own prompt is long, and the vocabulary of the small model is not."""
    wide: dict[str, Any] = {"context_tokens": 1 << 20, "new_tokens_max": 8192, "keep_alive_s": 1.0}
    return replace(LIMITS, **(wide | changes))


async def fly(
    client: Client, names: Sequence[str], folder: Path, limits_: Limits | None = None
) -> dict[str, Outcome]:
    """Run flights of a client in an empty folder, AT_ONCE side by side: executions of one group, in one lake.

    Raises NotInstalled, and TimeoutError with what the client said.
    """
    place_of = await asyncio.to_thread(installed, client.name)
    model = write_model_folder(folder / "model")
    run = Run(folder / "run")
    run.path.mkdir(parents=True)
    config = override(Config(), ["partitions=1", "commit_every_s=0.05"])
    run.config_file.write_bytes(msgspec.json.encode(config))
    with closing(run.open_log(config)) as log:
        of: dict[str, Any] = {"time_us": now_us(), "group_id": GROUP}
        log.append([ev.GroupDispatched(**of, task="{}", size=len(names), policy_version=0, boundary=0)])
    free = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, name: str) -> Outcome:
        async with free:
            return await _fly(client, name, index, Hangar(folder, place_of, model, run, limits_ or limits()))

    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(one(k, name)) for k, name in enumerate(names)}
    await asyncio.to_thread(work, run)
    return {name: task.result() for name, task in tasks.items()}


@dataclass(frozen=True)
class Hangar:
    """What the runs of a client share."""

    folder: Path
    installed: Path
    model: Path
    run: Run
    limits: Limits


async def _fly(client: Client, name: str, index: int, at: Hangar) -> Outcome:
    """One run, with an engine and a proxy of its own, so that all that they see is this run's."""
    script, recording = client.flights[name].script(), Recording()
    tokenizer = Tokenizer.from_file(str(at.model / "tokenizer.json"))
    home, execution = at.folder / name, f"e-{name}"
    by: dict[str, Any] = {"group_id": GROUP, "execution_id": execution}
    with closing(at.run.open_log()) as log:
        async with (
            ScriptedEngine(tokenizer, script) as engine,
            running_proxy(log, at.model, engine.url, at.limits, wrap=recording.wrap) as proxy,
        ):
            log.append([ev.ExecutionLaunched(time_us=now_us(), index=index, **by)])
            url, key = f"{proxy.url}/x/{execution}", sign(SECRET, GROUP, execution)
            place = Place(home, home / "project", at.installed, url, key, TASK.format(flight=name))
            began = time.monotonic()
            exit_, output = await _run(client, client.flights[name], place)
            seconds = time.monotonic() - began
            wires = list(recording.requests)
            status, closed = await proxy.close(execution)
            assert status == 200, closed
        by |= {"time_us": now_us()}
        log.append(
            [
                ev.ExecutionFinished(**by, status="completed", calls=closed["calls"], detail=f"exit {exit_}"),
                ev.ExecutionScored(**by, assessment="scored", value=1.0, evaluator="conformance"),
            ]
        )
    asked = [(role, line, a) for (role, line), a in zip(script.said, engine.asked, strict=True)]
    return Outcome(client, name, at.run, asked, wires, exit_, output, seconds, closed["calls"])


async def _run(client: Client, flight: Flight, place: Place) -> tuple[int, str]:
    place.project.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(place.project)], check=True, timeout=30)
    for path, text in (dict(client.home) | dict(client.files(place, flight.settings))).items():
        (place.home / path).parent.mkdir(parents=True, exist_ok=True)
        (place.home / path).write_text(text)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place.home),
        "TMPDIR": str(place.home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    } | dict(client.environment(place, flight.settings))
    process = await asyncio.create_subprocess_exec(
        *client.command(place, flight.settings),
        cwd=place.project, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = bytearray()

    async def read() -> None:
        assert process.stdout
        while part := await process.stdout.read(1 << 16):
            said.extend(part)

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(flight.settings.get("seconds_max", client.seconds_max)):
            exit_ = await process.wait()
    except TimeoutError as error:
        raise TimeoutError(f"{client.name} did not end; it said: {said.decode(errors='replace')}") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, 5)
    return exit_, said.decode(errors="replace")
