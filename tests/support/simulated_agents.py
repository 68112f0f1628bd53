"""Agents behind a simulated proxy: they ask, lose replies, ask again, go on, change their history."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random

from tests.support.simulated_client import PATHS, Said, body_of, kept, reply_of
from tests.support.simulated_proxy import HangUp, SimulatedProxy

ATTEMPTS_MAX = 30
PROBLEMS = (b"the log does not give what it holds",)  # that a client is told while the log is away


@dataclass(frozen=True)
class Reply:
    """One that an agent got.  `base`: the reply that its request went on after, None where it did not."""

    execution: str
    role: str
    said: Said
    base: Said | None


@dataclass
class World:
    """What all agents share, and what came of it."""

    rng: Random
    proxy: SimulatedProxy
    replies: list[Reply] = field(default_factory=list)
    number: int = 0

    def text(self, what: str, execution: str) -> str:
        self.number += 1
        return f"{what} {self.number} in {execution}."


@dataclass
class Agent:
    world: World
    execution: str
    role: str
    dialect: str
    said: list[Said] = field(default_factory=list)
    base: Said | None = None

    @property
    def rng(self) -> Random:
        return self.world.rng

    def _text(self, what: str) -> str:
        return self.world.text(what, self.execution)

    async def run(self, steps: int) -> None:
        self.said = [Said("system", self._text("system")), Said("user", self._text("task"))]
        for _ in range(steps):
            reply = await self._ask()
            if reply is None or not (reply.text or reply.calls):
                self.said.append(Said("user", self._text("again")))
                self.base = None
            else:
                self._go_on(reply)
            if self.rng.random() < 0.15:
                self._edit()
            await asyncio.sleep(self.rng.choice([0.0, self.rng.random(), 20.0]))

    def _go_on(self, reply: Said) -> None:
        self.base = reply
        self.said.append(kept(self.rng, reply))
        results = [Said("tool", self._text("result"), call_id=c.id) for c in reply.calls]
        self.rng.shuffle(results)
        self.said += results
        if not results or self.rng.random() < 0.2:
            self.said.append(Said("user", self._text("go on")))

    def _edit(self) -> None:
        """Forget the end of the history, or say something earlier in other words."""
        self.base = None
        if self.rng.random() < 0.5:
            last = max(k for k, s in enumerate(self.said) if s.role == "user")
            del self.said[last + 1 :]
        places = [k for k, s in enumerate(self.said) if s.role in ("user", "tool")]
        at = self.rng.choice(places)
        self.said[at] = replace(self.said[at], text=self._text("edited"))

    async def _ask(self) -> Said | None:
        """The reply that came in the end; None where the agent gave up."""
        for _ in range(ATTEMPTS_MAX):
            if self.dialect == "anthropic" and self.rng.random() < 0.1:
                await self.world.proxy.send(
                    self.execution, self.role + "/v1/messages/count_tokens", self._body(False)
                )
            hang_up = self._hang_up()
            if hang_up is None and self.rng.random() < 0.15:
                return await self._ask_twice()
            reply = await self._once(hang_up)
            if reply is not None:
                return reply
            if hang_up is not None and self.rng.random() < 0.25:
                return None
            await asyncio.sleep(self.rng.choice([0.0, 0.01, self.rng.random(), 30.0]))
        raise AssertionError(f"{self.execution}: no reply in {ATTEMPTS_MAX} attempts")

    def _hang_up(self) -> HangUp | None:
        kind = self.rng.choice(["", "", "", "s", "part"])
        reads_s = self.rng.choice([0.0, 0.0, self.rng.random()])
        if kind == "part":
            return HangUp(part=self.rng.randrange(4), reads_s=reads_s)
        longest = self.rng.choice([0.005, 0.05, 1.0, 100.0])
        return HangUp(s=longest * self.rng.random(), reads_s=reads_s) if kind else None

    def _body(self, stream: bool) -> bytes:
        limit = self.rng.choice([4, 20, 400, 4000])
        return body_of(self.dialect, self.said, stream=stream, limit=limit)

    async def _once(self, hang_up: HangUp | None) -> Said | None:
        stream = self.rng.random() < 0.5
        path, base = f"{self.role}/{PATHS[self.dialect]}", self.base
        proxy, process = self.world.proxy, self.world.proxy.process
        got = await proxy.send(self.execution, path, self._body(stream), hang_up)
        reply = reply_of(self.dialect, stream, bytes(got.body))
        if reply is not None:
            assert got.status == 200
            self.world.replies.append(Reply(self.execution, self.role, reply, base))
        elif hang_up is None and got.body and proxy.app is not None and proxy.process == process:
            assert got.status == 503, got
            assert any(p in got.body for p in PROBLEMS), got
        return reply

    async def _ask_twice(self) -> Said | None:
        """Two of the same at once are one call."""
        process = self.world.proxy.process
        one, two = await asyncio.gather(self._once(None), self._once(None))
        if one and two and self.world.proxy.process == process:
            assert (one.text, [c.id for c in one.calls]) == (two.text, [c.id for c in two.calls])
        return one or two
