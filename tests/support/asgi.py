"""Requests straight into an ASGI application: no socket, so bodies may end anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.types import ASGIApp


@dataclass(frozen=True)
class Sent:
    """A request.  `parts` are the pieces its body comes in.

    `cut`: the client hangs up before the body's end; `leaves`: as soon as the reply begins to come.
    """

    method: str
    path: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: tuple[bytes, ...] = (b"",)
    cut: bool = False
    leaves: bool = False
    client: str = "127.0.0.1"


@dataclass
class Got:
    """A reply: status 0 where none came."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False


async def send(app: ASGIApp, sent: Sent) -> Got:
    """One request; what the application raises is raised here."""
    path, _, query = sent.path.encode("utf-8", "replace").decode().partition("?")  # as servers decode it
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": sent.method,
        "scheme": "http", "path": path, "raw_path": path.encode("latin-1", "replace"), "root_path": "",
        "query_string": query.encode("latin-1", "replace"), "headers": sent.headers,
        "client": (sent.client, 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    got, left = Got(), list(sent.parts)
    over = asyncio.Event()

    async def receive():
        await asyncio.sleep(0)
        if left:
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left) or sent.cut}
        if not sent.cut:
            await over.wait()
        return {"type": "http.disconnect"}

    async def reply(message):
        if message["type"] == "http.response.start":
            assert not got.status
            got.status = message["status"]
            got.headers = {name.lower(): value for name, value in message["headers"]}
            if sent.leaves:
                over.set()
                await asyncio.sleep(0.01)
        else:
            assert got.status
            assert not got.ended
            got.body += message.get("body", b"")
            got.ended = not message.get("more_body", False)

    try:
        await app(scope, receive, reply)
    finally:
        over.set()
    return got


@contextlib.asynccontextmanager
async def living(app: ASGIApp) -> AsyncIterator[None]:
    """The application's lifespan."""
    to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    task = asyncio.create_task(
        app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put)
    )
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        await task
