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

from ingest.command_line import HARNESS_NAMES, CommandLine, dialect_environment
from ingest.identity import sign
from ingest.proxy.calls import Limits
from lake import events as ev
from lake.config import Config, override
from lake.layout import Run
from lake.log import Log, now_us
from tests.harnesses.install import installed
from tests.harnesses.scenario import TASK, Line, Script, Stage
from tests.support.ingested import work
from tests.support.running_proxy import LIMITS, SECRET, running_proxy
from tests.support.scripted_engine import Asked, ScriptedEngine
from tests.support.tiny_model import write_model_folder

GROUP, MODEL = "g-1", "policy"
HARNESS_S = 100
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
    dialect: str
    command: Callable[[Place, Mapping[str, Any]], Sequence[str]]
    environment: Callable[[Place, Mapping[str, Any]], Mapping[str, str]]
    flights: Mapping[str, Flight]
    files: Callable[[Place, Mapping[str, Any]], Mapping[str, str]] = lambda *_: {}
    rollout: str = ""
    """The value of `--harness` by which `headrace rollout` starts it; `started` makes the command of it."""
    home: Mapping[str, str] = field(default_factory=dict)
    """What lies in its HOME, by path: the FOLDER of `headrace rollout --home FOLDER`."""
    version: str = ""
    git: bool = True
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

    def of(self, name: str) -> list[Wire]:
        """The requests of one run's client."""
        return [w for w in self.requests if w.path.startswith(f"/x/e-{name}/")]


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
    """Run flights of a client in an empty folder, side by side: one engine, one proxy, one group, one lake.

    Raises NotInstalled, and TimeoutError with what the client said.
    """
    place_of = await asyncio.to_thread(installed, client.name)
    model = write_model_folder(folder / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    run, recording = Run(folder / "run"), Recording()
    stage = Stage({name: client.flights[name].script() for name in names})
    run.path.mkdir(parents=True)
    config = override(Config(), ["partitions=1", "commit_every_s=0.05"])
    run.config_file.write_bytes(msgspec.json.encode(config))
    with closing(run.open_log(config)) as log:
        async with (
            ScriptedEngine(tokenizer, stage) as engine,
            running_proxy(log, model, engine.url, limits_ or limits(), wrap=recording.wrap) as proxy,
        ):
            _launched(log, names)

            async def one(name: str) -> tuple[int, str, float, int]:
                home, key = folder / name, sign(SECRET, GROUP, f"e-{name}")
                place = Place(
                    home, home / "project", place_of, f"{proxy.url}/x/e-{name}", key, TASK.format(flight=name)
                )
                began = time.monotonic()
                exit_, output = await _run(client, client.flights[name], place)
                seconds = time.monotonic() - began
                status, closed = await proxy.close(f"e-{name}")
                assert status == 200, closed
                _ended(log, name, closed["calls"], exit_)
                return exit_, output, seconds, closed["calls"]

            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(one(name)) for name in names}
    await asyncio.to_thread(work, run)
    outcomes = {}
    for name, task in tasks.items():
        heard = [
            (role, line, a)
            for (flight, role, line), a in zip(stage.said, engine.asked, strict=True)
            if flight == name
        ]
        outcomes[name] = Outcome(client, name, run, heard, recording.of(name), *task.result())
    return outcomes


async def _run(client: Client, flight: Flight, place: Place) -> tuple[int, str]:
    place.project.mkdir(parents=True)
    if client.git:
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


def _launched(log: Log, names: Sequence[str]) -> None:
    of: dict[str, Any] = {"time_us": now_us(), "group_id": GROUP}
    log.append([ev.GroupDispatched(**of, task="{}", size=len(names), policy_version=0, boundary=0)])
    log.append([ev.ExecutionLaunched(**of, execution_id=f"e-{n}", index=k) for k, n in enumerate(names)])


def _ended(log: Log, name: str, calls: int, exit_: int) -> None:
    by: dict[str, Any] = {"time_us": now_us(), "group_id": GROUP, "execution_id": f"e-{name}"}
    log.append(
        [
            ev.ExecutionFinished(**by, status="completed", calls=calls, detail=f"exit {exit_}"),
            ev.ExecutionScored(**by, assessment="scored", value=1.0, evaluator="conformance"),
        ]
    )
