"""The proxy's real application over a log and an engine that fail, killed and started again at any moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import numpy as np

from ingest.engines.answer import EngineUnavailable, Generation
from ingest.engines.client import Standing
from ingest.engines.figures import Load
from ingest.engines.pool import EnginePool
from ingest.identity import sign
from ingest.proxy.app import make_app
from ingest.proxy.calls import Limits
from ingest.proxy.executions import Executions
from ingest.proxy.rendering import Renderer
from ingest.proxy.roles import Roles
from lake.blobs import Blobs
from lake.events import Event, VersionSpan
from lake.log import Log, LogUnavailable
from tests.support.routing import routed
from tests.support.virtual_loop import PROCESS, VirtualLoop, of_process

ROLES = Roles.load()
SECRET = b"0123456789abcdef" * 4
_numbers = iter(range(1, 1 << 60))


def group_of(execution: str) -> str:
    return execution.partition(".")[0]


class FailingBlobs(Blobs):
    """Blobs in memory, out of reach while their log is."""

    def __init__(self, log: FailingLog) -> None:
        super().__init__("memory://simulated-proxy")
        self._log = log

    def put(self, data: bytes) -> str:
        self._log._reach()
        return super().put(data)


class FailingLog:
    """A log that is out of reach while `away`, for writers and readers."""

    def __init__(self, log: Log) -> None:
        self._log, self.away = log, False
        self.blobs = FailingBlobs(self)

    def append(self, events: Sequence[Event]) -> Any:
        self._reach()
        return self._log.append(events)

    def reader(self, start: Any) -> Any:
        self._reach()
        return self._log.reader(start)

    def _reach(self) -> None:
        if self.away:
            raise LogUnavailable("simulated")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@dataclass
class Attempt:
    """What the engine was asked once.  `output` None: it failed."""

    execution: str
    ids: list[int]
    process: int
    output: list[int] | None = None
    finish: str = ""


class FailingEngine:
    """Says something of its own each time (its number, the execution's name), or fails, or takes long."""

    def __init__(self, rng: Random, renderer: Renderer) -> None:
        self._rng, self._renderer = rng, renderer
        self.attempts: list[Attempt] = []
        self.away, self.version, self._said = False, 0, 0
        self.whose: dict[str, str] = {}  # the execution of a call, by its rid
        self._aborts: dict[str, asyncio.Event] = {}

    async def generate(
        self, input_ids: Any, *, rid: str, affinity: str, new_tokens_max: int, **asked: Any
    ) -> Generation:
        rng, start = self._rng, asked.get("experts_start", 0)
        attempt = Attempt(affinity, input_ids.tolist(), PROCESS.get())
        self.attempts.append(attempt)
        fate = rng.choices(["answer", "lost", "abort"], [85, 8, 7])[0]
        begun, aborted = self.version, self._aborts.setdefault(rid, asyncio.Event())
        try:
            async with asyncio.timeout(rng.choice([0.0, rng.random(), 5 * rng.random(), 300 * rng.random()])):
                await aborted.wait()
        except TimeoutError:
            pass
        finally:
            del self._aborts[rid]
        if self.away or fate == "lost":
            raise EngineUnavailable("simulated")
        output = self._output(affinity)
        finish = "stop"
        if aborted.is_set() or fate == "abort":
            output, finish = output[: rng.randrange(len(output))], "abort"
        if len(output) > new_tokens_max:
            output, finish = output[:new_tokens_max], "length"
        attempt.output, attempt.finish = output, finish
        at = rng.randint(0, len(output)) if self.version != begun else 0
        spans = [VersionSpan(begun, 0, at), VersionSpan(self.version, at, len(output))]
        tells = asked.get("routed_experts") and (output or finish != "abort")  # not of one that only waited
        return Generation(
            experts=routed(attempt.ids + output)[start:] if tells else None,
            experts_start=start,
            output_ids=np.array(output, np.int32),
            output_logprobs=np.full(len(output), -0.5, np.float32),
            finish_reason=cast(Any, finish),
            spans=tuple(s for s in spans if s.end > s.start),
            cached_tokens=0,
            weight_version=self.version,
        )

    def _output(self, affinity: str) -> list[int]:
        self._said += 1
        rng, text = self._rng, f"[{self._said}] of {affinity}"
        if rng.random() < 0.3:
            text = f"<think>\nhm {self._said}\n</think>\n\n{text}"
        for _ in range(rng.choice([0, 0, 1, 2])):
            arguments = f'{{"n":  1.50, "command": "ls {self._said}"}}'
            text += f'\n<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
        return [*self._renderer.encode(text).tolist(), self._renderer.stop_ids[-1]]

    async def abort(self, rid: str) -> None:
        if rid in self._aborts:
            self._aborts[rid].set()
            await asyncio.sleep(self._rng.choice([0.0, self._rng.random(), 15.0 * self._rng.random()]))


class Cell:
    """A part of a FailingEngine, as a pool sees one: it must get no more than `capacity` calls at once."""

    def __init__(self, url: str, engine: FailingEngine, capacity: int) -> None:
        self.url, self.capacity = url, capacity
        self._engine, self._running = engine, 0

    async def generate(self, input_ids: Any, *, rid: str, **asked: Any) -> Generation:
        self._running += 1
        assert self._running <= self.capacity
        try:
            return await self._engine.generate(
                input_ids, rid=rid, affinity=self._engine.whose.pop(rid), **asked
            )
        finally:
            self._running -= 1

    async def abort(self, rid: str) -> None:
        await self._engine.abort(rid)

    async def standing(self) -> Standing:
        return "silent" if self._engine.away else "ready"

    async def loads(self) -> tuple[Load, ...]:
        return ()

    async def close(self) -> None:
        pass


class Cells:
    """A FailingEngine as several, behind the real pool."""

    def __init__(self, engine: FailingEngine, capacities: Sequence[int]) -> None:
        self._engine = engine
        cells = [Cell(f"http://cell-{k}", engine, n) for k, n in enumerate(capacities)]
        self.pool = EnginePool(cells, capacities={cell.url: cell.capacity for cell in cells})

    async def generate(self, input_ids: Any, *, rid: str, affinity: str, **asked: Any) -> Generation:
        self._engine.whose[rid] = affinity
        return await self.pool.generate(input_ids, rid=rid, affinity=affinity, **asked)

    async def abort(self, rid: str) -> None:
        await self.pool.abort(rid)


@dataclass
class Got:
    """What of a reply came while the client was there; status 0 where nothing did."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)


@dataclass
class HangUp:
    """When the client goes: after `s` seconds, or as it reads the reply's `part` (from 0).

    `reads_s`: so long it takes to read a part, and the server's next one waits, as with a full buffer.
    """

    s: float | None = None
    part: int | None = None
    reads_s: float = 0.0


@dataclass
class SimulatedProxy:
    """`send` is a request as a server would pass it on; while the proxy is down nothing answers.

    `capacities`: of the cells that its engine is made of; none: it is one, without a pool.
    """

    log: FailingLog
    engine: FailingEngine
    renderer: Renderer
    limits: Limits
    capacities: Sequence[int] = ()
    process: int = 0
    app: Any = None
    cells: Cells | None = None
    handlers: list[asyncio.Task[None]] = field(default_factory=list)
    _lifespan: asyncio.Queue[dict[str, str]] = field(default_factory=asyncio.Queue)

    @property
    def loop(self) -> VirtualLoop:
        return cast(VirtualLoop, asyncio.get_running_loop())

    @property
    def executions(self) -> Executions:
        (found,) = {
            id(e): e
            for route in self.app.routes
            if (e := getattr(route.endpoint, "_executions", None)) is not None
        }.values()
        return cast(Executions, found)

    async def start(self) -> None:
        self.process, self._lifespan = next(_numbers), asyncio.Queue()
        self.cells = Cells(self.engine, self.capacities) if self.capacities else None
        app = make_app(
            log=cast(Log, self.log),
            engine=self.cells or self.engine,
            engine_name="simulated",
            renderer=self.renderer,
            secret=SECRET,
            limits=self.limits,
            roles=ROLES,
        )
        said: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        with of_process(self.process):
            self._living = asyncio.create_task(app({"type": "lifespan"}, self._lifespan.get, said.put))
        self._lifespan.put_nowait({"type": "lifespan.startup"})
        await said.get()
        self.app = app

    async def kill(self) -> None:
        self.app = None
        await self.loop.kill(self.process)

    async def stop(self) -> None:
        self._lifespan.put_nowait({"type": "lifespan.shutdown"})
        await self._living
        if self.cells:
            await self.cells.pool.close()
        self.app = None

    async def send(self, execution: str, path: str, body: bytes = b"", hang_up: HangUp | None = None) -> Got:
        """One POST of an execution; what the application raises, its task in `handlers` holds."""
        got, over, hang_up = Got(), asyncio.Event(), hang_up or HangUp()
        if self.app is None:
            await asyncio.sleep(0.1)
            return got
        process, token = self.process, sign(SECRET, group_of(execution), execution)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": f"/x/{execution}/{path}", "raw_path": b"", "root_path": "",
            "query_string": b"", "headers": [(b"authorization", b"Bearer " + token.encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        parts, came = [body], 0
        unread: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal came
            await self._read(got, unread, over, hang_up.reads_s)
            if message.get("body") == b"" and message.get("more_body"):
                return  # nothing comes to the client
            if came == hang_up.part:
                self.loop.call_later(hang_up.reads_s / 2, over.set) if hang_up.reads_s else over.set()
            came += 1
            if over.is_set():
                return
            if message["type"] == "http.response.start":
                got.status = message["status"]
            else:
                unread.append(message["body"])
                if not hang_up.reads_s:
                    await self._read(got, unread, over, 0.0)

        with of_process(process):
            handler = asyncio.create_task(self.app(scope, receive, send))
        self.handlers.append(handler)
        timer = None if hang_up.s is None else self.loop.call_later(hang_up.s, over.set)
        gone = asyncio.create_task(over.wait())
        await asyncio.wait({handler, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        await self._read(got, unread, over, hang_up.reads_s)
        if timer:
            timer.cancel()
        return got

    @staticmethod
    async def _read(got: Got, unread: list[bytes], over: asyncio.Event, s: float) -> None:
        """The client takes what was written, unless it goes before."""
        if any(unread) and s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(s):
                    await over.wait()
        if not over.is_set():
            got.body += b"".join(unread)
        unread.clear()
