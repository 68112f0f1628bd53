"""The proxy's app under uvicorn, over a real scripted engine and a real SQLite log, in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvicorn
from starlette.types import ASGIApp

from ingest.engines.client import EngineClient
from ingest.engines.pool import EnginePool
from ingest.identity import sign
from ingest.proxy.app import make_app
from ingest.proxy.calls import Engine, Limits
from ingest.proxy.control import Connect
from ingest.proxy.rendering import Renderer
from lake.events import Event
from lake.log import Log
from lake.wire import decode

SECRET = b"0123456789abcdef" * 4
LIMITS = Limits(
    context_tokens=4096, new_tokens_max=256, temperature=1.0, keep_alive_s=0.05, abort_s_max=5.0, rejoin_s=0.0
)


def read_events(log: Log, topic: str) -> list[Event]:
    """Every event of a topic."""
    reader = log.reader({(topic, p): 0 for p in range(log.partitions(topic))})
    try:
        events = []
        while any(reader.lag().values()):
            events += [decode(r.headers, r.value, log.blobs) for r in reader.poll(1.0)]
        return events
    finally:
        reader.close()


async def until(condition, seconds=20.0):
    """Wait for something that happens in this loop."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class Running:
    url: str
    session: aiohttp.ClientSession
    log: Log

    def headers(self, execution="e-1", group="g-1"):
        return {"Authorization": f"Bearer {sign(SECRET, group, execution)}"}

    def ask(self, messages, execution="e-1", role="", headers=None, **body):
        """A request context, to enter with `async with`."""
        path = f"/x/{execution}/{role + '/' if role else ''}v1/chat/completions"
        return self.session.post(
            self.url + path,
            data=json.dumps({"model": "m", "messages": messages, **body}),
            headers=self.headers(execution) if headers is None else headers,
        )

    async def answer(self, messages, execution="e-1", **body):
        """(status, body as JSON)."""
        async with self.ask(messages, execution, **body) as reply:
            return reply.status, await reply.json()

    async def close(self, execution="e-1"):
        async with self.session.post(
            f"{self.url}/x/{execution}/close", headers=self.headers(execution)
        ) as reply:
            return reply.status, await reply.json()

    def calls(self):
        return {e.call_id: e for e in read_events(self.log, "calls")}


@contextlib.asynccontextmanager
async def serve(app) -> AsyncIterator[str]:
    """The URL of an ASGI app under uvicorn on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="httptools", log_level="warning", access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # pytest's are kept
    task = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        await until(lambda: server.started or task.done())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


@contextlib.asynccontextmanager
async def running_proxy(
    log: Log,
    model: Path,
    engine: str | Engine,
    limits: Limits = LIMITS,
    *,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    connect: Connect | None = None,
) -> AsyncIterator[Running]:
    """A proxy in front of an engine (its URL, or a client); everything is closed at the end but the log.

    `wrap` may put something around the application, to see what passes through it; with `connect` a pool
    may be steered.
    """
    client = EngineClient(engine) if isinstance(engine, str) else engine
    app = make_app(
        log=log,
        engine=client,
        engine_name=engine if isinstance(engine, str) else "pool",
        renderer=Renderer.load(model),
        secret=SECRET,
        limits=limits,
        connect=connect,
    )
    try:
        async with serve(wrap(app)) as url, aiohttp.ClientSession() as session:
            yield Running(url, session, log)
    finally:
        if isinstance(client, EngineClient | EnginePool):
            await client.close()
