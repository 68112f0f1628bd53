"""Engines while the proxy runs: what they are, leave, come back, come, go.

    GET  /engines                                                     what there is, and how many calls wait
    POST /engines/drain    {"engine": URL, "to": [URL], "finish_s": 0}   answers when nothing runs there
    POST /engines/undrain  {"engine": URL}
    POST /engines/add      {"engine": "URL#capacity=8"}                  as `--engine` says it
    POST /engines/remove   {"engine": URL, "to": [URL], "finish_s": 0}   drained, and then forgotten

For a scheduler that makes a trainer of a cell, or a person.  The key is the run's own
(`ingest.identity.control_key`), which no harness has: they run on the same machine, and whoever drains
engines stops the run.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingest.engines.draining import drain, remove, undrain
from ingest.engines.pool import EnginePool, Server
from ingest.identity import control_key
from lake.engine_address import EngineAddress, parse_engine

BODY_BYTES_MAX = 1 << 16
FINISH_S_MAX = 24 * 3600.0

Connect = Callable[[EngineAddress], Server]


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """`engine` is a URL.  `to`: where its calls go, the best first; they get `finish_s` seconds to end."""

    engine: str
    to: list[str] = []
    finish_s: float = 0.0


def control_routes(pool: EnginePool, secret: bytes, connect: Connect) -> list[Route]:
    """The paths above.  `connect` makes the client of an engine that comes."""
    key = control_key(secret)

    async def state(_: _Asked | None) -> Any:
        return described(pool)

    async def leaves(asked: _Asked) -> Any:
        return (await drain(pool, asked.engine, to=asked.to, finish_s=asked.finish_s))._asdict()

    async def returns(asked: _Asked) -> Any:
        undrain(pool, asked.engine)
        return described(pool)

    async def comes(asked: _Asked) -> Any:
        address = parse_engine(asked.engine)
        pool.add(connect(address), address.capacity)
        return described(pool)

    async def goes(asked: _Asked) -> Any:
        return (await remove(pool, asked.engine, to=asked.to, finish_s=asked.finish_s))._asdict()

    def route(path: str, answer: Callable[[Any], Awaitable[Any]], method: str = "POST") -> Route:
        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode(), key.encode()):
                return _json({"error": "the run's control key is needed, as a bearer token"}, 401)
            try:
                asked = await _read(request) if method == "POST" else None
                return _json(await answer(asked))
            except ValueError as error:  # of msgspec, addresses, the pool
                return _json({"error": str(error)}, 400)

        return Route(path, guarded, methods=[method])

    return [
        route("/engines", state, "GET"),
        route("/engines/drain", leaves),
        route("/engines/undrain", returns),
        route("/engines/add", comes),
        route("/engines/remove", goes),
    ]


async def _read(request: Request) -> _Asked:
    """The body.  Raises ValueError."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"the body has over {BODY_BYTES_MAX} bytes, the most there may be")
    asked = msgspec.json.decode(body, type=_Asked)
    if not 0 <= asked.finish_s <= FINISH_S_MAX:
        raise ValueError(f"finish_s is {asked.finish_s:g}, 0 to {FINISH_S_MAX:g} is possible")
    return asked


def described(pool: EnginePool) -> dict[str, Any]:
    """Every engine: state, calls that run there or have a place, how many it takes (null: no bound)."""
    now = asyncio.get_running_loop().time()
    engines = [
        {
            "engine": url,
            "state": health.state(now),
            "running": health.running,
            "reserved": health.reserved,
            "capacity": health.capacity,
            "reason": health.reason,
        }
        for url, health in pool.healths.items()
    ]
    return {"engines": engines, "waiting": pool.waiting}


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
