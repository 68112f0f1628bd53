"""`/generate`: one request, its call, its answer, whole or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import time

import msgspec
from starlette.types import Receive, Scope, Send

from ingest.engines.embedded import wire
from ingest.engines.embedded.batch import Call
from ingest.engines.embedded.engine import Engine
from ingest.engines.embedded.http import error_answer, read_body

_JSON = [(b"content-type", b"application/json")]
_STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class Generate:
    """`/generate` as a plain ASGI application: it must see the client hang up while the model works."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        engine = self._engine
        try:
            request, call, queue = engine.open(await read_body(receive))
        except wire.Refused as refused:
            await error_answer(str(refused), refused.status)(scope, receive, send)
            return
        gone = asyncio.ensure_future(receive())  # nothing comes after the body but the end
        finished = False

        def show(done: Call) -> bytes:
            latency_s = time.monotonic() - started
            return wire.answer(
                done, request, version=engine.batch.version, latency_s=latency_s, tokenizer=engine.tokenizer
            )

        try:
            if request.stream:
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            while not finished:
                step = asyncio.ensure_future(queue.get())
                await asyncio.wait((step, gone), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    step.cancel()
                    return
                done = step.result()
                if done is None:
                    await self._died(request.stream, scope, receive, send)
                    return
                finished = bool(done.finish)
                body = show(done)
                if request.stream:
                    end = b"\n\ndata: [DONE]\n\n" if finished else b"\n\n"
                    await send(
                        {
                            "type": "http.response.body",
                            "body": b"data: " + body + end,
                            "more_body": not finished,
                        }
                    )
                else:
                    await send({"type": "http.response.start", "status": 200, "headers": _JSON})
                    await send({"type": "http.response.body", "body": body})
        finally:
            gone.cancel()
            engine.close(call.rid, finished=finished)

    @staticmethod
    async def _died(stream: bool, scope: Scope, receive: Receive, send: Send) -> None:
        sentence = "the model thread died during this call; restart the engine"
        if not stream:
            await error_answer(sentence, 500)(scope, receive, send)
            return
        error = msgspec.json.encode({"error": {"message": sentence, "code": 500, "retryable": True}})
        await send({"type": "http.response.body", "body": b"data: " + error + b"\n\n"})
