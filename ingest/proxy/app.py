"""The proxy's paths, keys and limits.

    POST /x/{execution}/v1/chat/completions             role main
    POST /x/{execution}/{role}/v1/chat/completions      role: one of lake.events.ROLES
    GET  /x/{execution}/v1/models
    POST /x/{execution}/close                           {"calls": n}: no more calls; n are in the log
    GET  /health
    GET  /metrics                                       numbers for Prometheus (lake.metrics)

The key (`Authorization: Bearer` or `X-Api-Key`) is the execution's token (ingest.identity): an
execution sees only its own.  What a call is recorded against lives in this process's memory, so an
execution that was launched before the process started is sealed: it gets 409.

/metrics asks for no key, since a scraper has none, and answers only to the same machine: whoever comes
from an address that is not a loopback gets 403.  It shows counts and seconds, never an id or a text.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ingest.identity import BadToken, Identity, verify
from ingest.proxy.calls import Caller, Engine, Limits
from ingest.proxy.delivery import JSON, Delivery, read_body, send_body
from ingest.proxy.dialects.chat import Chat
from ingest.proxy.dialects.dialect import Dialect
from ingest.proxy.execution import Execution
from ingest.proxy.neutral import Rejected
from ingest.proxy.rendering import Renderer
from ingest.proxy.writer import EventWriter
from lake.events import ROLES, ExecutionLaunched
from lake.follow import Follower
from lake.log import Log, now_us
from lake.metrics import CONTENT_TYPE, exposition, proxy_metrics


def is_loopback(address: str) -> bool:
    """Whether an IP address (or `localhost`) is of this machine only."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


TOO_DEEP = Rejected(400, "invalid_request", "the body is nested too deeply")


def launched_before(log: Log) -> frozenset[str]:
    """The executions that the log knows now (it is read once, to its end; the topic is light)."""
    follower = Follower(log, ("executions",))
    try:
        launched = (e for e in follower.catch_up() if isinstance(e, ExecutionLaunched))
        return frozenset(e.execution_id for e in launched)
    finally:
        follower.close()


@dataclass(eq=False)
class Proxy:
    """What the paths share.  `model` is the name under which the policy is listed."""

    log: Log
    engine: Engine
    engine_name: str
    renderer: Renderer
    secret: bytes
    limits: Limits
    clock: Callable[[], int]
    model: str
    sealed: frozenset[str]
    writer: EventWriter = field(init=False)
    caller: Caller = field(init=False)
    executions: dict[str, Execution] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = EventWriter(self.log, retry_s_max=self.limits.log_wait_s_max)
        self.caller = Caller(self.engine, self.writer, self.limits, self.clock)

    def identity(self, scope: Scope) -> Identity:
        """Whose request it is.  Raises Rejected: 401 without a good key, 403 with another's."""
        token = ""
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                token = value.decode("latin-1").strip()
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                token = value[7:].decode("latin-1").strip()
                break
        try:
            identity = verify(self.secret, token)
        except BadToken as error:
            raise Rejected(401, "bad_token", f"{error}; give the execution's token as the API key") from error
        wanted = scope["path_params"]["execution"]
        if identity.execution_id != wanted:
            raise Rejected(
                403,
                "other_execution",
                f"the API key is of execution {identity.execution_id}, the URL of {wanted}",
            )
        return identity

    def execution(self, identity: Identity) -> Execution:
        """The execution's state, made at its first call.  Raises Rejected (409, 429, 503)."""
        name = identity.execution_id
        self.refuse_sealed(name)
        if name in self.closed:
            raise Rejected(409, "execution_closed", f"execution {name} is closed; it takes no more calls")
        execution = self.executions.get(name)
        if execution is None:
            if len(self.executions) >= self.limits.executions_max:
                raise Rejected(
                    429,
                    "too_many_executions",
                    f"{len(self.executions)} executions are open, which is the most",
                )
            execution = Execution(identity, self.renderer, self.engine_name, self.clock())
            self.executions[name] = execution
        if execution.failed:
            raise Rejected(503, "log_unavailable", execution.failed)
        if execution.closing:
            raise Rejected(
                409, "execution_closed", f"execution {name} is being closed; it takes no more calls"
            )
        return execution

    def refuse_sealed(self, name: str) -> None:
        """Raises Rejected (409) for an execution that this process has not seen from its start."""
        if name in self.sealed:
            raise Rejected(
                409,
                "execution_sealed",
                f"execution {name} was launched before this proxy started, which does not know its "
                "history; launch its place in the group again under another id",
            )

    async def close(self, identity: Identity) -> int:
        """See `Caller.close`; asked again, it answers the same."""
        name = identity.execution_id
        self.refuse_sealed(name)
        execution = self.executions.get(name)
        if execution is not None:
            self.closed[name] = await self.caller.close(execution)
            self.executions.pop(name, None)
        return self.closed.setdefault(name, 0)


class CallEndpoint:
    """POST of one dialect, as an ASGI application."""

    def __init__(self, proxy: Proxy, dialect: Dialect) -> None:
        self._proxy = proxy
        self._dialect = dialect
        self._deliver = Delivery(proxy.caller, dialect, proxy.limits.keep_alive_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        proxy = self._proxy
        try:
            identity = proxy.identity(scope)
            role = scope["path_params"].get("role", "main")
            if role not in ROLES:
                raise Rejected(404, "unknown_role", f"role {role!r} in the URL; one of {', '.join(ROLES)}")
            body = await read_body(receive, proxy.limits.body_bytes_max, proxy.limits.body_s_max)
            if body is None:
                return
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            request = self._dialect.parse(body, headers)
            execution = proxy.execution(identity)
            call = proxy.caller.ask(execution, role, request)
        except (Rejected, RecursionError) as error:
            rejected = error if isinstance(error, Rejected) else TOO_DEEP
            proxy_metrics().refused(rejected.code)
            await send_body(send, rejected.status, JSON, self._dialect.error(rejected))
            return
        handled = asyncio.get_running_loop().create_future()
        execution.handling.add(handled)
        try:
            await self._deliver(call, request, receive, send)
        finally:
            execution.handling.discard(handled)
            handled.set_result(None)


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
    clock: Callable[[], int] = now_us,
) -> Starlette:
    """The ASGI application.  Reads the log's executions when it is made; closes nothing it was given."""
    sealed = launched_before(log)
    proxy = Proxy(log, engine, engine_name, renderer, secret, limits, clock, model, sealed)
    chat = Chat()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        proxy.writer.start()
        yield
        await proxy.writer.stop()

    async def models(request: HttpRequest) -> Response:
        try:
            proxy.identity(request.scope)
        except Rejected as rejected:
            return Response(chat.error(rejected), rejected.status, media_type="application/json")
        model_card = {"id": proxy.model, "object": "model", "created": 0, "owned_by": "headrace"}
        return _json({"object": "list", "data": [model_card]})

    async def close(request: HttpRequest) -> Response:
        try:
            return _json({"calls": await proxy.close(proxy.identity(request.scope))})
        except Rejected as rejected:
            return Response(chat.error(rejected), rejected.status, media_type="application/json")

    async def health(_: HttpRequest) -> Response:
        running = sum(len(e.running) for e in proxy.executions.values())
        return _json({"status": "ok", "executions": len(proxy.executions), "running": running})

    async def metrics(request: HttpRequest) -> Response:
        if not is_loopback(request.client.host if request.client else ""):
            rejected = Rejected(403, "not_this_machine", "metrics are shown to this machine only")
            return Response(chat.error(rejected), rejected.status, media_type="application/json")
        return Response(exposition(), media_type=CONTENT_TYPE)

    calls = CallEndpoint(proxy, chat)
    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/x/{execution}/v1/chat/completions", calls, methods=["POST"]),
            Route("/x/{execution}/{role}/v1/chat/completions", calls, methods=["POST"]),
            Route("/x/{execution}/v1/models", models, methods=["GET"]),
            Route("/x/{execution}/close", close, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
    )
