"""Agents for courier, and a server that answers as one of them, as the capture proxy would."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from ingest.courier.chat import Function, Message, ToolCall, dumps
from ingest.courier.demonstrations import calls, clumsy, read_objects, says
from ingest.courier.harness import COMPACT, Request

Agent = Callable[[Request], Message]


def perfect(request: Request) -> Message:  # noqa: PLR0911  one return a decision
    """Does everything right, from what it is shown alone."""
    last, shown = request.messages[-1], read_objects(request.messages)
    if request.role == "sub-agent":
        return calls("look", shown[0]) if last.role == "user" else says(dumps({"door": shown[-1]["door"]}))
    if last.text == COMPACT:
        return says(dumps({"tag": shown[2]["tag"], "door": shown[3]["door"]}))
    if last.text.startswith("Summary"):
        return calls("deliver", shown[0])
    if last.text == "signed":
        return says("done")
    turn = sum(m.role == "assistant" for m in request.messages)
    if turn == 0:
        return calls("find", {"item": shown[0]["item"]})
    if turn == 1:
        return calls("take", {"shelf": shown[1]["shelf"]})
    return calls("ask", {"to": shown[0]["to"]})


def clumsy_by_request(request: Request) -> Message:
    """The clumsy agent, its choice a function of what it is asked."""
    seed = msgspec.json.encode([request.role, [m.text for m in request.messages]])
    return clumsy(request, random.Random(seed))


def parsed(text: str) -> Message:
    """What a proxy makes of a model's text: a call in Hermes form becomes one, anything else stays text."""
    found = re.fullmatch(r'<tool_call>\n\{"name":"(\w+)","arguments":(\{.*\})\}\n</tool_call>', text, re.S)
    if not found:
        return says(text)
    return Message(role="assistant", tool_calls=(ToolCall(id="c", function=Function(found[1], found[2])),))


@dataclass
class Server:
    """What the server saw, and how it behaves."""

    agent: Agent
    think_s: float = 0.0
    url: str = ""
    calls: Counter[str] = field(default_factory=Counter)  # answered, by execution
    asked: list[tuple[str, str, str, bytes]] = field(default_factory=list)  # execution, role, key, body
    hung_up: list[bytes] = field(default_factory=list)  # bodies whose client did not wait
    closed: Counter[str] = field(default_factory=Counter)
    sealed: set[str] = field(default_factory=set)  # executions that are refused
    refusal: tuple[int, str] | None = None  # status and body for every call
    healthy: bool = True
    live: int = 0
    live_max: int = 0

    async def chat(self, request: web.Request) -> web.Response:
        execution, role = request.match_info["execution"], request.match_info.get("role", "main")
        body = await request.read()
        self.asked.append((execution, role, request.headers.get("Authorization", ""), body))
        if execution in self.sealed:
            return web.json_response({"error": {"message": "sealed"}}, status=409)
        if self.refusal is not None:
            return web.Response(status=self.refusal[0], text=self.refusal[1])
        data = json.loads(body)
        assert set(data) == {"model", "messages", "max_tokens", "temperature"}
        self.live += 1
        self.live_max = max(self.live_max, self.live)
        try:
            await asyncio.sleep(self.think_s)
        except asyncio.CancelledError:
            self.hung_up.append(body)
            raise
        finally:
            self.live -= 1
        answer = self.agent(Request(role, tuple(msgspec.convert(data["messages"], list[Message]))))
        self.calls[execution] += 1
        message = msgspec.to_builtins(answer)
        for call in message.get("tool_calls") or ():
            call["id"] = f"{execution}-{self.calls[execution]}"
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})

    async def close(self, request: web.Request) -> web.Response:
        execution = request.match_info["execution"]
        if execution in self.sealed:
            return web.json_response({"error": {"message": "sealed"}}, status=409)
        self.closed[execution] += 1
        return web.json_response({"calls": self.calls[execution]})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)


@asynccontextmanager
async def serving(agent: Agent, *, think_s: float = 0.0, port: int = 0) -> AsyncIterator[Server]:
    """A server on a free port of the loopback (or on `port`), which notices when a client hangs up."""
    server = Server(agent, think_s)
    app = web.Application()
    app.add_routes(
        [
            web.post("/x/{execution}/v1/chat/completions", server.chat),
            web.post("/x/{execution}/{role}/v1/chat/completions", server.chat),
            web.post("/x/{execution}/close", server.close),
            web.get("/health", server.health),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    await site.start()
    host, at = runner.addresses[0][:2]
    server.url = f"http://{host}:{at}"
    try:
        yield server
    finally:
        await runner.cleanup()
