"""A real HTTP server that speaks SGLang's /generate and says what a script tells it to.

The script is a callback from the decoded prompt to a `Say`.  Every request is kept, with the very
ids that came.  Start it in a test's loop (`async with ScriptedEngine(...)`) or as a process:

    python -m tests.support.scripted_engine --model FOLDER --port P --delay-s D
    python -m tests.support.scripted_engine --model FOLDER --port P --stop-at decode

The second stands still at that point of its first call, says `at decode`, and waits to be killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer

POINTS = ("queued", "prefill", "decode", "last-token", "half-written")
"""Where an engine may die: nothing computed, half the prompt, half the answer, all of it, half of it sent."""
COMPUTED = {"queued": 0.0, "prefill": 0.0, "decode": 0.5, "last-token": 1.0, "half-written": 1.0}


@dataclass
class Say:
    """One answer.  `ids` overrides the encoded `text`; `stop` appends the stop token.

    fault: "" | "500" (or another status) | "drop" (the connection) | "abort" (as a weight update does) |
    one of POINTS (the connection is reset there, as that of a killed process is) | "hang" (no answer, ever).
    `change` may do anything to the answer before it is sent.
    `hold` is waited for first; an abort request ends the wait with what `partial` tokens allow.
    """

    text: str = ""
    ids: list[int] | None = None
    stop: bool = True
    fault: str = ""
    hold: asyncio.Event | None = None
    partial: int = 3
    versions: list[tuple[str | None, int, int]] | None = None
    change: Callable[[dict[str, Any]], None] = lambda answer: None


@dataclass
class Asked:
    """One request as it came: token ids, the prompt as text, the whole body, and what was answered.

    `output_ids` of a call that died are those computed until then.
    """

    ids: list[int]
    prompt: str
    body: dict[str, Any]
    output_ids: list[int] = field(default_factory=list)
    aborted: bool = False


class ScriptedEngine:
    """Listens on a free loopback port; `url` after the start.

    `ready` is the status of `/ready`, 0 for no answer.  `stands_still`: instead of a reset connection.
    `key`: asked for as a bearer token, "" for none.  `reads`: whether prompts are decoded for the script.
    """

    def __init__(
        self, tokenizer: Tokenizer, script: Callable[[str], Say], port: int = 0, keep: bool = True
    ) -> None:
        self.keep = keep
        self.reads = True
        self.ready = 200
        self.stands_still = False
        self.key = ""
        self.tokenizer = tokenizer
        self.script = script
        self.asked: list[Asked] = []
        self._aborts: dict[str, asyncio.Event] = {}
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> ScriptedEngine:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/ready", self._ready)
        self._runner = web.AppRunner(app, shutdown_timeout=1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        host, self._port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening; starting again takes the same port."""
        for abort in self._aborts.values():
            abort.set()
        assert self._runner
        await self._runner.cleanup()

    async def _ready(self, _: web.Request) -> web.Response:
        if not self.ready:
            await asyncio.Event().wait()
        return web.json_response({}, status=self.ready)

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": "0"})

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json()).get("rid")
        if rid in self._aborts:
            self._aborts[rid].set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no good API key"}}, status=401)
        body = await request.json()
        ids, rid = body["input_ids"], body["rid"]
        prompt = self.tokenizer.decode(ids, skip_special_tokens=False) if self.reads else ""
        asked = Asked(ids, prompt, body)
        if self.keep:
            self.asked.append(asked)
        say = self.script(prompt)
        abort = self._aborts[rid] = asyncio.Event()
        if say.hold:
            waits = {asyncio.create_task(say.hold.wait()), asyncio.create_task(abort.wait())}
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
        del self._aborts[rid]
        asked.aborted = abort.is_set()
        if say.fault.isdigit():
            return web.json_response({"error": {"message": "scripted"}}, status=int(say.fault))
        if say.fault == "hang":
            await asyncio.Event().wait()
        if say.fault == "drop":
            assert request.transport
            request.transport.close()
            return web.Response()
        answer = self._answer(asked, say)
        say.change(answer)
        if say.fault in POINTS:
            return await self._dies(request, asked, say.fault, answer)
        return web.json_response(answer)

    async def _dies(
        self, request: web.Request, asked: Asked, point: str, answer: dict[str, Any]
    ) -> web.StreamResponse:
        asked.output_ids = asked.output_ids[: int(len(asked.output_ids) * COMPUTED[point])]
        response = web.StreamResponse()
        if point == "half-written":
            body = json.dumps(answer).encode()
            response.content_length = len(body)
            response.content_type = "application/json"
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
        if self.stands_still:
            print(f"at {point}", flush=True)
            await asyncio.Event().wait()
        assert request.transport
        request.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        request.transport.abort()
        return response

    def _answer(self, asked: Asked, say: Say) -> dict[str, Any]:
        limit = asked.body["sampling_params"]["max_new_tokens"]
        stop_id = asked.body["sampling_params"].get("stop_token_ids", [0])[-1]
        ids = (
            say.ids if say.ids is not None else self.tokenizer.encode(say.text, add_special_tokens=False).ids
        )
        ids = [*ids, self.tokenizer.token_to_id("<|im_end|>")] if say.stop and say.ids is None else ids
        reason: dict[str, Any] = {"type": "stop", "matched": stop_id}
        if len(ids) > limit or not say.stop:
            ids, reason = ids[:limit], {"type": "length", "length": limit}
        if asked.aborted or say.fault == "abort":
            ids, reason = ids[: say.partial], {"type": "abort", "message": "aborted"}
        asked.output_ids = ids
        spans = say.versions if say.versions is not None else [("0", 0, len(ids))]
        meta = {
            "id": asked.body["rid"],
            "finish_reason": reason,
            "prompt_tokens": len(asked.ids),
            "completion_tokens": len(ids),
            "cached_tokens": len(asked.ids) // 2,
            "weight_version": "0",
            "weight_versions": [{"version": v, "start": a, "end": b} for v, a, b in spans],
            "output_token_logprobs": [[-0.001 * (k % 1000) - 0.25, i, None] for k, i in enumerate(ids)],
            "output_token_logprobs_length": len(ids),
        }
        text = self.tokenizer.decode(ids)
        return {"text": text, "output_ids": ids, "meta_info": meta}


def main() -> None:
    """Answers every prompt with one tool call after a while: for benchmarks, and to be killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--stop-at", choices=POINTS, default="")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    text = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'

    def say(_: str) -> Say:
        hold = asyncio.Event()
        asyncio.get_running_loop().call_later(arguments.delay_s, hold.set)
        return Say(text, hold=hold, fault=arguments.stop_at)

    async def serve() -> None:
        async with ScriptedEngine(tokenizer, say, arguments.port, keep=False) as engine:
            engine.stands_still, engine.reads = bool(arguments.stop_at), False
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
