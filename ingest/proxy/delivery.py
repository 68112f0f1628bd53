"""Replies over HTTP: nothing reaches the client before the engine's result is final.

Streaming: headers and a first sign of life at once, more of them while the engine works, then the
whole answer.  Not streaming: the socket is held.  A client that hangs up is noticed in both.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.types import Receive, Send

from ingest.proxy.calls import Call, Caller
from ingest.proxy.neutral import Answer, Rejected, Request

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Dialect(Protocol):
    """A protocol that harnesses speak: bytes of it to the neutral form, and back."""

    keep_alive: bytes
    """What holds a stream open, in the protocol's own words."""

    def parse(self, body: bytes) -> Request:
        """Raises Rejected (400) for what it does not understand or cannot honour."""

    def answer(self, request: Request, answer: Answer) -> bytes:
        """The whole reply, not streamed."""

    def stream(self, request: Request, answer: Answer) -> bytes:
        """The whole reply as the events of a stream, its end included."""

    def error(self, rejected: Rejected) -> bytes:
        """The body of a reply that is not 200."""

    def stream_error(self, rejected: Rejected) -> bytes:
        """The event that ends a stream which cannot be answered."""


async def read_body(receive: Receive, bytes_max: int, s_max: float) -> bytes | None:
    """The request's body; None where the client hung up.

    Raises Rejected: 413 above `bytes_max` bytes, 408 where it takes over `s_max` seconds.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(s_max):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > bytes_max:
                    raise Rejected(
                        413, "body_too_large", f"the body has over {bytes_max} bytes, the most there may be"
                    )
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Rejected(
            408, "body_too_slow", f"the body did not come in {s_max:g} s; it has {size} bytes so far"
        ) from None


async def send_body(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    """A whole response at once."""
    await _start(send, status, content_type, len(body))
    await send({"type": "http.response.body", "body": body})


async def _start(send: Send, status: int, content_type: bytes, length: int | None) -> None:
    headers = [(b"content-type", content_type)]
    if length is None:
        headers.append((b"cache-control", b"no-cache"))
    else:
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Delivery:
    """Waits for a call and writes its reply to one client."""

    def __init__(self, caller: Caller, dialect: Dialect, keep_alive_s: float) -> None:
        self._caller = caller
        self._dialect = dialect
        self._keep_alive_s = keep_alive_s

    async def __call__(self, call: Call, request: Request, receive: Receive, send: Send) -> None:
        """Returns when the reply is written, or the client has gone; the call is settled then."""
        gone = asyncio.create_task(_hung_up(receive))
        try:
            if request.stream:
                await _start(send, 200, EVENTS, None)
            if not await self._wait(call, gone, send if request.stream else None):
                self._caller.leave(call)
                return
            delivered = await self._reply(call, request, gone, send)
            await self._caller.settle(call, delivered)
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def _wait(self, call: Call, gone: asyncio.Task[None], alive: Send | None) -> bool:
        """True when the call has ended, False when the client has gone before it."""
        while not call.task.done() and not gone.done():
            if alive:
                await alive(
                    {"type": "http.response.body", "body": self._dialect.keep_alive, "more_body": True}
                )
            await asyncio.wait(
                {call.task, gone},
                timeout=self._keep_alive_s if alive else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return call.task.done()

    async def _reply(self, call: Call, request: Request, gone: asyncio.Task[None], send: Send) -> bool:
        """Write all of the reply but its end; True where the client was there to get an answer."""
        dialect = self._dialect
        try:
            answer = call.task.result()
        except Rejected as rejected:
            if request.stream:
                body = dialect.stream_error(rejected)
            else:
                body = dialect.error(rejected)
                await _start(send, rejected.status, JSON, len(body))
            await send({"type": "http.response.body", "body": body, "more_body": True})
            return False
        if request.stream:
            body = dialect.stream(request, answer)
        else:
            body = dialect.answer(request, answer)
            await _start(send, 200, JSON, len(body))
        if gone.done():
            return False
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)
        return not gone.done()
