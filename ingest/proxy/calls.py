"""One call's life, from the request to the acknowledged record.

    asked -> sampling -> recorded -> acknowledged -> answered
               |  ^                                    |
               |  +- the engine failed or aborted      +- lost on its way: kept
               +- everybody who waited has gone, and nobody came back: aborted, recorded as not delivered

An execution that asks the same while a call runs joins it.  A reply that was lost is kept: the same
request is answered from it, and a request that goes on after it shows that it arrived after all; what is
still lost when the execution is closed becomes `reply.undelivered`.  The harness sees one slow call where
the engine goes away for less than `engine_wait_s_max`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ingest.engines.answer import EngineBusy
from ingest.engines.client import EngineError, EngineUnavailable, Generation, new_rid
from ingest.engines.parts import joined, nothing
from ingest.matching import Ids
from ingest.proxy.execution import Execution
from ingest.proxy.experts import ExpertsKeeper
from ingest.proxy.history import LOST, Match, Turn
from ingest.proxy.neutral import Answer, Rejected, Request
from ingest.proxy.prompting import Prompt
from ingest.proxy.writer import EventWriter
from lake.events import EventError, ReplyUndelivered, ToolCalled
from lake.log import LogError
from lake.metrics import EngineTime, proxy_metrics

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 5.0
TOOLS_S = 0.1  # so long a tool's event waits for a transaction to go with: else there were twice as many
WORKED_S = 5.0  # an attempt that took longer before it failed had found an engine


class Engine(Protocol):
    """What the proxy needs of an engine's client (ingest.engines.client.EngineClient)."""

    async def generate(
        self,
        input_ids: Ids,
        *,
        rid: str,
        affinity: str = "",
        new_tokens_max: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = -1,
        stop_token_ids: tuple[int, ...] = (),
        timeout_s: float,
        routed_experts: bool = False,
        experts_start: int = 0,
    ) -> Generation:
        """Calls of one `affinity` share their beginnings: they go to one engine as long as it serves.

        Raises EngineUnavailable where trying again may help, EngineRefused where not, EngineBusy where it
        waited for a place in vain.
        """

    async def abort(self, rid: str) -> None:
        """`generate` then returns what there is, with finish reason `abort`."""


@dataclass(frozen=True)
class Limits:
    """A bound for every body, queue and wait.

    `generate_s_max` is one attempt of one call (an hour: long answers on a loaded engine);
    `engine_wait_s_max` is the time that harnesses' own clients wait for one reply (capture.md).
    `rejoin_s`: a call that everybody left runs on so long, since clients that time out ask again at once.
    `continue_aborted`: what an engine sampled before it ended a call too early is gone on from.
    `state_bytes_max` of all executions together; see ingest.proxy.executions.
    `experts`: how many a layer of the model has; its routing is then asked for and kept (0: it is not).
    `log_wait_s_max`: a reply is held so long for a log that is away, and then fails by name; the log's own
    wait for its last try comes on top (30 s for Kafka).
    """

    context_tokens: int
    new_tokens_max: int
    temperature: float
    body_bytes_max: int = 32 << 20
    body_s_max: float = 60.0
    calls_per_execution_max: int = 64
    executions_max: int = 10_000
    state_bytes_max: int = 8 << 30
    engine_wait_s_max: float = 600.0
    generate_s_max: float = 3600.0
    abort_s_max: float = 10.0
    close_s_max: float = 90.0
    log_wait_s_max: float = 60.0
    keep_alive_s: float = 10.0
    rejoin_s: float = 20.0
    continue_aborted: bool = True
    experts: int = 0


@dataclass(eq=False)
class Call:
    """A running call and those who wait for it."""

    execution: Execution
    request: Request
    role: str
    key: bytes
    match: Match
    prompt: Prompt
    temperature: float
    new_tokens_max: int
    started_us: int
    gone: asyncio.Future[None]
    tools: list[ToolCalled]
    parts: list[Generation] = field(default_factory=list)  # of attempts that engines ended too early
    dropped: int = 0  # tokens of such attempts that are not gone on from
    experts: str = ""  # the reference of its routed experts
    waiting: int = 0
    turn: Turn | None = None
    task: asyncio.Future[Answer] = field(init=False)
    _leaving: asyncio.TimerHandle | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters, as they are recorded."""
        asked = self.request.sampling
        return {
            "temperature": self.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "new_tokens_max": self.new_tokens_max,
        } | ({"dropped_tokens": self.dropped} if self.dropped else {})

    @property
    def given_up(self) -> bool:
        """It will have no answer: it was abandoned before there was one."""
        return self.gone.done() and self.turn is None

    def join(self) -> None:
        """One more waits for the answer."""
        self.waiting += 1
        if self._leaving:
            self._leaving.cancel()

    def leave(self, rejoin_s: float) -> None:
        """One who waited does so no more; who was the last may come back within `rejoin_s` seconds."""
        self.waiting -= 1
        if self.waiting or self.task.done():
            return
        if rejoin_s:
            self._leaving = asyncio.get_running_loop().call_later(rejoin_s, self.abandon)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Nobody waits any more."""
        if not self.gone.done():
            self.gone.set_result(None)


class Caller:
    """Starts calls, lets requests join them, and settles what became of the replies."""

    def __init__(
        self,
        engine: Engine,
        writer: EventWriter,
        limits: Limits,
        clock: Callable[[], int],
        experts: ExpertsKeeper | None = None,
    ) -> None:
        """Without `experts` none are asked for."""
        self._engine = engine
        self._experts = experts
        self._writer = writer
        self._limits = limits
        self._clock = clock
        self._metrics = proxy_metrics()

    def ask(self, execution: Execution, role: str, request: Request) -> Call:
        """The call that answers a request: a running one with the same content, or a new one.

        The caller waits for `call.task`, perhaps not to its end, and then says `settle`, once.
        Raises Rejected.
        """
        match = execution.history.match(request.messages)
        key = request.digest(role, match.place)
        call = next((c for c in execution.running if c.key == key and not c.given_up), None)
        if call is None:
            if len(execution.running) >= self._limits.calls_per_execution_max:
                raise Rejected(
                    429,
                    "too_many_calls",
                    f"{len(execution.running)} calls of this execution are running, "
                    f"{self._limits.calls_per_execution_max} at most; wait for one to end",
                )
            call = self._start(execution, role, request, match, key)
        call.join()
        return call

    def _start(self, execution: Execution, role: str, request: Request, match: Match, key: bytes) -> Call:
        now_us, began = self._clock(), time.perf_counter()
        unsent = execution.history.unsent(match.place, role, key)
        prompt = execution.prompt(request, match)
        new_tokens_max = self._room(request, len(prompt.ids))
        temperature = request.sampling.temperature
        loop = asyncio.get_running_loop()
        call = Call(
            execution=execution,
            request=request,
            role=role,
            key=key,
            match=match,
            prompt=prompt,
            temperature=self._limits.temperature if temperature is None else temperature,
            new_tokens_max=new_tokens_max,
            started_us=now_us,
            gone=loop.create_future(),
            tools=[] if unsent else execution.tool_events(request, now_us),
        )
        if unsent:
            call.turn, call.task = unsent, loop.create_future()
            call.task.set_result(execution.answer(unsent, request))
            return call
        call.task = asyncio.create_task(self._measured(call, began))
        call.task.add_done_callback(_retrieve)
        execution.running.add(call)
        return call

    def _room(self, request: Request, prompt_tokens: int) -> int:
        """How many tokens a call may sample: what was asked, clamped.  Raises Rejected (400)."""
        context = self._limits.context_tokens
        if prompt_tokens >= context:
            raise Rejected(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {context} tokens. However, your messages have "
                f"{prompt_tokens} tokens. Please shorten the messages.",
                (prompt_tokens, context),
            )
        asked = request.new_tokens_max if request.new_tokens_max is not None else self._limits.new_tokens_max
        return min(asked, context - prompt_tokens)

    async def _measured(self, call: Call, began: float) -> Answer:
        with self._metrics.call(call.role, began) as engine:
            return await self._run(call, engine)

    async def _run(self, call: Call, engine: EngineTime) -> Answer:
        execution = call.execution
        tools = self._writer.put(*call.tools, within_s=TOOLS_S)
        try:
            try:
                with engine.running():
                    generation = await self._sample(call)
                if generation is None:
                    raise _given_up("before the engine answered")
                if self._experts:
                    call.experts = await self._experts.keep(generation)
                recorded = execution.record(
                    call, generation, delivered=not call.gone.done(), now_us=self._clock()
                )
                call.turn = recorded.turn
                await self._writer.append(recorded.event)
                self._metrics.tokens(len(call.prompt.ids), recorded.event.n_output)
            finally:
                await tools
            if recorded.answer is None or not call.waiting:
                self._metrics.undelivered.inc()
            if recorded.answer is None:
                raise _given_up("while the engine answered it")
            return recorded.answer
        except (LogError, EventError) as error:
            execution.failed = f"an event of this execution is not in the log: {error}"
            raise Rejected(503, "log_unavailable", execution.failed) from error
        finally:
            execution.running.discard(call)

    # ---------------------------------------------------------------------------- the engine
    async def _sample(self, call: Call) -> Generation | None:
        """The engine's final answer; None where everybody left before there was any of it."""
        loop = asyncio.get_running_loop()
        failing_since, pause = math.inf, PAUSE_S_MIN
        while not call.gone.done():
            began = loop.time()
            try:
                generation = await self._attempt(call)
                if generation.finish_reason != "abort" or call.gone.done():
                    return joined([*call.parts, generation])
                reason = "the engine aborted the call"  # a weight update, a drain: not the harness's matter
                self._keep(call, generation)
            except EngineUnavailable as error:
                reason = str(error)
            except EngineBusy as error:
                raise Rejected(503, "engines_full", str(error)) from error
            except EngineError as error:
                raise Rejected(502, "engine_refused", f"the engine refuses this call: {error}") from error
            if loop.time() - began > WORKED_S:  # it was at work until now: engines are away since now only
                failing_since, pause = loop.time(), PAUSE_S_MIN
            failing_since = min(failing_since, loop.time())
            if loop.time() + pause - failing_since > self._limits.engine_wait_s_max:
                raise Rejected(
                    503,
                    "engine_unavailable",
                    f"no answer from the engine for {self._limits.engine_wait_s_max:g} s; at last: {reason}",
                )
            await asyncio.wait({call.gone}, timeout=pause)
            pause = min(pause * 2, PAUSE_S_MAX)
        return joined([*call.parts, nothing("abort")]) if call.parts else None

    def _keep(self, call: Call, part: Generation) -> None:
        """What an aborted attempt sampled: the next one goes on after it; spans tell the versions apart."""
        if self._limits.continue_aborted and len(part.output_ids):
            call.parts.append(part)
        else:
            call.dropped += len(part.output_ids)

    async def _generate(self, call: Call, rid: str) -> Generation:
        asked = call.request.sampling
        experts_from = self._experts.wanted_from(call) if self._experts else None
        wanted: dict[str, Any] = {}
        if experts_from is not None:
            wanted = {"routed_experts": True, "experts_start": experts_from}
        sampled = [p.output_ids for p in call.parts]
        left = call.new_tokens_max - sum(map(len, sampled))
        if left <= 0:
            return nothing("length")
        return await self._engine.generate(
            np.concatenate([call.prompt.ids, *sampled]) if sampled else call.prompt.ids,
            rid=rid,
            affinity=call.execution.identity.execution_id,
            new_tokens_max=left,
            temperature=call.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            stop_token_ids=call.execution.renderer.stop_ids,
            timeout_s=self._limits.generate_s_max,
            **wanted,
        )

    async def _attempt(self, call: Call) -> Generation:
        """One try.  It is aborted where everybody leaves: what came until then, nothing where none tells."""
        loop, rid = asyncio.get_running_loop(), new_rid()
        aborting: list[asyncio.Task[None]] = []
        ended = False
        try:
            async with asyncio.timeout(None) as limit:

                def leave(_: object) -> None:
                    if ended:  # in the same turn of the loop
                        return
                    limit.reschedule(loop.time() + self._limits.abort_s_max)
                    aborting.append(asyncio.create_task(self._abort(rid, limit)))

                call.gone.add_done_callback(leave)
                try:
                    return await self._generate(call, rid)
                finally:
                    ended = True
                    call.gone.remove_done_callback(leave)
                    for task in aborting:
                        task.cancel()
        except (EngineError, TimeoutError):
            if call.gone.done():
                return nothing("abort")
            raise

    async def _abort(self, rid: str, limit: asyncio.Timeout) -> None:
        """Abort at the engine; where it cannot be told to, its answer is not waited for."""
        try:
            await self._engine.abort(rid)
        except EngineError:
            limit.reschedule(asyncio.get_running_loop().time())

    # ------------------------------------------------------------------------------- the end
    def settle(self, call: Call, delivered: bool) -> None:
        """What became of one reply.  Where none of them was delivered it is kept for who asks again."""
        call.leave(self._limits.rejoin_s)
        if call.turn is None or call.execution.failed:
            return
        if delivered:
            call.execution.sent(call.turn, self._clock())
        elif call.task.done() and not call.waiting and call.turn.reply == LOST:
            self._metrics.undelivered.inc()

    async def close(self, execution: Execution) -> int:
        """End an execution: its running calls are aborted; the number of calls that the log holds.

        Replies that never arrived are told to the log.  Raises Rejected (503) where an event did not reach
        the log, or calls do not end in time.
        """
        execution.closing = True
        for call in execution.running:
            call.abandon()
        ending = {c.task for c in execution.running} | execution.handling
        if ending:
            _, left = await asyncio.wait(ending, timeout=self._limits.close_s_max)
            if left:
                raise Rejected(
                    503,
                    "calls_running",
                    f"{len(left)} calls did not end in {self._limits.close_s_max:g} s; try again",
                )
        if execution.failed:
            raise Rejected(503, "log_unavailable", execution.failed)
        try:
            for turn in execution.history.lost:
                await self._writer.append(
                    ReplyUndelivered(
                        time_us=self._clock(),
                        group_id=execution.identity.group_id,
                        execution_id=execution.identity.execution_id,
                        call_id=turn.call_id,
                    )
                )
        except LogError as error:  # asked again it tries again
            raise Rejected(503, "log_unavailable", str(error)) from error
        return execution.calls


def _given_up(when: str) -> Rejected:
    return Rejected(409, "call_abandoned", f"the call was given up {when}")


def _retrieve(future: asyncio.Future[Any]) -> None:
    """An error that nobody waits for any more has been told to the log or the harness already."""
    if not future.cancelled():
        future.exception()
