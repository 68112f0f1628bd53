"""What the routes share: bodies with a limit, JSON answers, the API key."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ingest.engines.embedded.wire import Refused

BODY_BYTES_MAX = 8 << 20
_OPEN = ("/health", "/health_generate", "/ready", "/metrics")  # never need the key, as in SGLang


def json_answer(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def error_answer(sentence: str, status: int = 400) -> Response:
    return json_answer({"error": {"message": sentence, "code": status}}, status)


async def read_body(receive: Receive) -> bytes:
    """A whole request body.  Raises Refused over BODY_BYTES_MAX, or when the client leaves."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused("the client has gone before its request was read")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES_MAX:
            raise Refused(f"the body has over {BODY_BYTES_MAX} bytes", 413)
        more = message.get("more_body", False)
    return b"".join(parts)


async def read_object(request: Request) -> dict[str, Any]:
    data = await read_body(request.receive)
    try:
        return msgspec.json.decode(data or b"{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Refused(f"the body is no JSON object: {error}") from None


class Keyed:
    """Asks for `Authorization: Bearer KEY` on every route but those of health."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            headers = dict(scope["headers"])
            if headers.get(b"authorization") != self._key:
                await error_answer("the API key is missing or wrong", 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)
