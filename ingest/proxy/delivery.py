"""Replies over HTTP: nothing reaches the client before the engine's result is final.

Streaming: headers and a first sign of life at once, more of them while the engine works, then the
whole answer.  Not streaming: the socket is held.  A client that hangs up is noticed in both.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Send

from ingest.proxy.calls import Call, Caller
from ingest.proxy.dialects.dialect import Dialect, Reply
from ingest.proxy.neutral import Rejected, Request

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


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


async def _more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


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
        delivered = False
        try:
            try:
                delivered = await self._reply(call, request, gone, send)
            finally:
                self._caller.settle(call, delivered)
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def _reply(self, call: Call, request: Request, gone: asyncio.Task[None], send: Send) -> bool:
        """Write all of the reply but its end; True where the client was there to get an answer."""
        reply = self._dialect.reply(request) if request.stream else None
        if reply:
            await _start(send, 200, EVENTS, None)
            await _more(send, reply.begin(len(call.prompt.ids)))
        if not await self._wait(call, gone, reply, send):
            return False
        return await self._answer(call, request, reply, gone, send)

    async def _wait(self, call: Call, gone: asyncio.Task[None], reply: Reply | None, send: Send) -> bool:
        """True when the call has ended, False when the client has gone before it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        either: set[asyncio.Future[Any]] = {call.task, gone}
        while not call.task.done() and not gone.done():
            await asyncio.wait(
                either,
                timeout=self._keep_alive_s if reply else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if reply and not call.task.done() and not gone.done():
                await _more(send, reply.alive(loop.time() - began))
        return call.task.done()

    async def _answer(
        self, call: Call, request: Request, reply: Reply | None, gone: asyncio.Task[None], send: Send
    ) -> bool:
        """The part of `_reply` that comes when the call has ended."""
        try:
            answer = call.task.result()
        except Rejected as rejected:
            body = reply.fail(rejected) if reply else self._dialect.error(rejected)
            if not reply:
                await _start(send, rejected.status, JSON, len(body))
            await _more(send, body)
            return False
        body = reply.finish(answer) if reply else self._dialect.answer(request, answer)
        if not reply:
            await _start(send, 200, JSON, len(body))
        if gone.done():
            return False
        await _more(send, body)
        await _more(send, b"")  # where the body did not fit into the server's buffer: waits until it does
        await asyncio.sleep(0)
        return not gone.done()
