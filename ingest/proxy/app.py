"""The proxy's paths, keys and limits.

    POST /x/{execution}/v1/chat/completions             OpenAI Chat Completions
    POST /x/{execution}/v1/responses                    OpenAI Responses
    POST /x/{execution}/v1/messages[/count_tokens]      Anthropic Messages
    GET  /x/{execution}/v1/models[/{id}]
    POST /x/{execution}/{role}/v1/...                   the same; role: one of lake.events.ROLES
    POST /x/{execution}/close                           {"calls": n}: no more calls; n are in the log
    HEAD /x/{execution}, GET /x/{execution}/api/hello   what clients ask to see whether somebody is there
    GET  /health
    GET  /metrics                                       numbers for Prometheus (lake.metrics)
    /engines...                                         where there are several: ingest.proxy.control

`/v1` may be left out.  The key (`Authorization: Bearer` or `X-Api-Key`) is the execution's token
(ingest.identity): an execution sees only its own.  Where the path names no role, the rules of
ingest.proxy.roles find it.

/metrics asks for no key, since a scraper has none, and answers only to the same machine: whoever comes
from an address that is not a loopback gets 403.  It shows counts and seconds, never an id or a text.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ingest.engines.pool import EnginePool
from ingest.proxy.calls import Caller, Engine, Limits
from ingest.proxy.control import Connect, control_routes
from ingest.proxy.delivery import JSON, Delivery, read_body, send_body
from ingest.proxy.dialects.anthropic import Anthropic
from ingest.proxy.dialects.chat import Chat
from ingest.proxy.dialects.dialect import Dialect
from ingest.proxy.dialects.responses import Responses
from ingest.proxy.execution import Execution
from ingest.proxy.executions import Executions
from ingest.proxy.experts import ExpertsKeeper
from ingest.proxy.neutral import Rejected, Request
from ingest.proxy.rendering import Renderer
from ingest.proxy.roles import Roles
from ingest.proxy.writer import EventWriter
from lake.events import ROLES
from lake.log import Log, now_us
from lake.metrics import CONTENT_TYPE, exposition, proxy_metrics

TOO_DEEP = Rejected(400, "invalid_request", "the body is nested too deeply")
CHAT, RESPONSES, ANTHROPIC = Chat(), Responses(), Anthropic()


def is_loopback(address: str) -> bool:
    """Whether an IP address (or `localhost`) is of this machine only."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


class _Endpoint:
    """POST of a body in one dialect, as an ASGI application; what it raises of Rejected is told in it."""

    def __init__(self, executions: Executions, dialect: Dialect) -> None:
        self._executions, self._dialect = executions, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except (Rejected, RecursionError) as error:
            rejected = error if isinstance(error, Rejected) else TOO_DEEP
            proxy_metrics().refused(rejected.code)
            await send_body(send, rejected.status, JSON, self._dialect.error(rejected))

    async def _body(self, receive: Receive) -> bytes | None:
        limits = self._executions.limits
        return await read_body(receive, limits.body_bytes_max, limits.body_s_max)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class CallEndpoint(_Endpoint):
    """A call: a request, its answer."""

    def __init__(self, executions: Executions, dialect: Dialect, roles: Roles) -> None:
        super().__init__(executions, dialect)
        self._roles = roles
        self._deliver = Delivery(executions.caller, dialect, executions.limits.keep_alive_s)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        executions = self._executions
        identity = executions.identity(scope)
        role = scope["path_params"].get("role")
        if role is not None and role not in ROLES:
            raise Rejected(404, "unknown_role", f"role {role!r} in the URL; one of {', '.join(ROLES)}")
        body = await self._body(receive)
        if body is None:
            return
        headers = _headers(scope)
        request = self._dialect.parse(body, headers)
        execution = await executions.get(identity)
        call = executions.caller.ask(execution, role or self._role(execution, request, headers), request)
        handled = asyncio.get_running_loop().create_future()
        execution.handling.add(handled)
        try:
            await self._deliver(call, request, receive, send)
        finally:
            execution.handling.discard(handled)
            handled.set_result(None)
            executions.grown(execution)

    def _role(self, execution: Execution, request: Request, headers: dict[str, str]) -> str:
        return self._roles.role(request, headers, execution.sessions, execution.role_of_tool_call)


class CountEndpoint(_Endpoint):
    """Anthropic's count_tokens: how many tokens a request would have; nothing is recorded."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = self._executions.identity(scope)
        body = await self._body(receive)
        if body is None:
            return
        request = ANTHROPIC.parse(body, _headers(scope))
        execution = await self._executions.get(identity)
        prompt = execution.prompt(request, execution.history.match(request.messages))
        await send_body(send, 200, JSON, ANTHROPIC.counted(len(prompt.ids)))


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def make_app(
    *,
    log: Log,
    engine: Engine,
    engine_name: str,
    renderer: Renderer,
    secret: bytes,
    limits: Limits,
    model: str = "policy",
    roles: Roles | None = None,
    clock: Callable[[], int] = now_us,
    connect: Connect | None = None,
) -> Starlette:
    """The ASGI application.  Reads the log's executions when it is made; closes nothing it was given.

    `model` is the name under which the policy is listed; `roles` the rules, the shipped ones by default.
    `connect` makes the client of an engine that comes later, where `engine` is a pool that is to be steered.
    Raises ValueError where routed experts are to be kept and the log has no blobs.
    """
    writer = EventWriter(log, retry_s_max=limits.log_wait_s_max)
    caller = Caller(engine, writer, limits, clock, _experts(log, limits))
    rules = roles or Roles.load()
    executions = Executions(log, renderer, secret, limits, clock, caller, engine_name)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await writer.stop()

    endpoints = {
        "chat/completions": CallEndpoint(executions, CHAT, rules),
        "responses": CallEndpoint(executions, RESPONSES, rules),
        "messages": CallEndpoint(executions, ANTHROPIC, rules),
        "messages/count_tokens": CountEndpoint(executions, ANTHROPIC),
    }
    routes = []  # calls first: routes are tried in their order
    for path, endpoint in endpoints.items():
        for prefix in ("/v1/", "/"):
            routes += [
                Route(f"/x/{{execution}}{prefix}{path}", endpoint, methods=["POST"]),
                Route(f"/x/{{execution}}/{{role}}{prefix}{path}", endpoint, methods=["POST"]),
            ]
    routes += _plain_routes(executions, model)
    if isinstance(engine, EnginePool) and connect:
        routes += control_routes(engine, secret, connect)
    app = Starlette(lifespan=lifespan, routes=routes)
    app.router.redirect_slashes = False  # it would answer with an address out of the request's own header
    return app


def _experts(log: Log, limits: Limits) -> ExpertsKeeper | None:
    if not limits.experts:
        return None
    if log.blobs is None:
        raise ValueError("routed experts lie in blobs, and the log was opened without; use `Run.open_log`")
    return ExpertsKeeper(log.blobs, limits.experts, limits.log_wait_s_max)


def _plain_routes(executions: Executions, model: str) -> list[Route]:
    """Everything but calls."""

    def of_execution(
        answer: Callable[[HttpRequest], Awaitable[Response]],
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def guarded(request: HttpRequest) -> Response:
            dialect = ANTHROPIC if "anthropic-version" in request.headers else CHAT
            try:
                executions.identity(request.scope)
                return await answer(request)
            except Rejected as rejected:
                return Response(dialect.error(rejected), rejected.status, media_type="application/json")

        return guarded

    async def models(request: HttpRequest) -> Response:
        dialect = ANTHROPIC if "anthropic-version" in request.headers else CHAT
        name = request.path_params.get("model")
        if name is None:
            return Response(dialect.models([model]), media_type="application/json")
        return Response(dialect.model(name), media_type="application/json")

    async def close(request: HttpRequest) -> Response:
        return _json({"calls": await executions.close(executions.identity(request.scope))})

    async def hello(_: HttpRequest) -> Response:
        return Response()

    async def health(_: HttpRequest) -> Response:
        running = sum(len(e.running) for e in executions.open.values())
        return _json({"status": "ok", "executions": len(executions.open), "running": running})

    async def metrics(request: HttpRequest) -> Response:
        if not is_loopback(request.client.host if request.client else ""):
            rejected = Rejected(403, "not_this_machine", "metrics are shown to this machine only")
            return Response(CHAT.error(rejected), rejected.status, media_type="application/json")
        return Response(exposition(), media_type=CONTENT_TYPE)

    listed, one = of_execution(models), of_execution(models)
    return [
        Route("/x/{execution}/v1/models", listed, methods=["GET"]),
        Route("/x/{execution}/models", listed, methods=["GET"]),
        Route("/x/{execution}/v1/models/{model:path}", one, methods=["GET"]),
        Route("/x/{execution}/models/{model:path}", one, methods=["GET"]),
        Route("/x/{execution}/close", of_execution(close), methods=["POST"]),
        Route("/x/{execution}/api/hello", hello, methods=["GET"]),
        Route("/x/{execution}", hello, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
