"""One execution: its history and its tree, and the events that both become.

No input or output here and no clock: times are arguments, so that what a call becomes is a function
of what came before it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ingest.engines.client import Generation
from ingest.identity import Identity
from ingest.matching import EMPTY, Ids, Matcher
from ingest.proxy.history import History, Node, Turn
from ingest.proxy.neutral import Answer, Rejected, Request, ToolCall
from ingest.proxy.parsing import Parsed, parse
from ingest.proxy.prompting import Prompt, make_prompt
from ingest.proxy.rendering import Renderer
from lake.events import EventError, ModelCalled, ToolCalled, ids_to_bytes, logprobs_to_bytes
from lake.wire import EVENT_BYTES_MAX

if TYPE_CHECKING:
    from ingest.proxy.calls import Call

RECORD_ROOM = 16 << 10  # what a call's record holds beside its arrays, at most


@dataclass(slots=True)
class _Minted:
    """A tool call that this execution's policy made."""

    call_id: int
    name: str
    arguments: str
    sent_us: int
    returned: bool = False


@dataclass(slots=True, eq=False)
class Recorded:
    """A call that is in the tree: the event for the log, and the answer if there is one to deliver."""

    event: ModelCalled
    input_len: int
    place: Node
    turn: Turn | None
    answer: Answer | None


@dataclass(eq=False)
class Execution:
    """State of an execution while it runs; dropped when it is closed."""

    identity: Identity
    renderer: Renderer
    engine: str
    started_us: int
    calls: int = 0
    closing: bool = False
    failed: str = ""
    running: dict[bytes, Call] = field(default_factory=dict)
    handling: set[asyncio.Future[None]] = field(default_factory=set)
    undelivered: dict[bytes, int] = field(default_factory=dict)  # by request: the call to retry
    _history: History = field(default_factory=History)
    _matcher: Matcher = field(default_factory=Matcher)
    _lengths: list[int] = field(default_factory=list)
    _minted: dict[str, _Minted] = field(default_factory=dict)

    def prompt(self, request: Request) -> Prompt:
        """The ids of a request.  Raises Rejected where the template refuses it."""
        return make_prompt(request, self._history, self._matcher, self.renderer, now_us=self.started_us)

    def tool_events(self, request: Request, now_us: int) -> list[ToolCalled]:
        """One event for each result that a request brings for the first time."""
        events = []
        for message in request.messages:
            minted = self._minted.get(message.call_id) if message.role == "tool" else None
            if minted is None or minted.returned:
                continue
            minted.returned = True
            events.append(
                ToolCalled(
                    time_us=now_us,
                    group_id=self.identity.group_id,
                    execution_id=self.identity.execution_id,
                    tool_call_id=message.call_id,
                    call_id=minted.call_id,
                    name=minted.name,
                    arguments=minted.arguments.encode(),
                    result=message.text.encode(),
                    started_us=minted.sent_us,
                    stopped_us=now_us,
                    status="unknown",  # a tool's message does not say whether it failed
                )
            )
        return events

    def record(self, call: Call, generation: Generation, *, delivered: bool, now_us: int) -> Recorded:
        """Take a finished call into the tree and give it its id; an answer is made if one can be delivered.

        Ids are given here, so that parents always come earlier and none is left out.
        Raises Rejected (502) for an engine's answer that cannot be trusted, and then changes nothing.
        """
        output = np.asarray(generation.output_ids, np.int32)
        event = self._event(call, generation, output, delivered, now_us)
        call_id = self.calls
        prompt = call.prompt
        self._matcher.insert(call_id, prompt.ids, output if delivered else EMPTY, prompt.base)
        self._lengths.append(len(prompt.ids) + len(output))
        self.calls += 1
        place = self._history.add(call_id, call.request.messages, prompt.match)
        turn = answer = None
        if delivered:
            parsed = self._parse(prompt, output, generation.finish_reason)
            answer = self._answer(call_id, call, generation, parsed, now_us)
            turn = Turn(call_id, parsed.text, parsed.reasoning, answer.calls, output, prompt.body, Node())
            self._history.answer(place, turn)
            self.undelivered.pop(call.key, None)
        else:
            self.undelivered[call.key] = call_id
        return Recorded(event, len(prompt.ids), place, turn, answer)

    def _event(
        self, call: Call, generation: Generation, output: Ids, delivered: bool, now_us: int
    ) -> ModelCalled:
        prompt = call.prompt
        parent, shared = self._matcher.longest_prefix(prompt.ids, prompt.base)
        relation = self._relation(prompt, parent, shared)
        differences = [] if relation == "extends" else [prompt.difference or self._token(parent, shared)]
        event = ModelCalled(
            time_us=now_us,
            group_id=self.identity.group_id,
            execution_id=self.identity.execution_id,
            call_id=self.calls,
            role=call.role,
            parent_call_id=parent,
            shared_len=shared,
            context_ids=ids_to_bytes(prompt.ids[shared:]),
            output_ids=ids_to_bytes(output),
            output_logprobs=logprobs_to_bytes(generation.output_logprobs),
            relation=relation,
            difference="; ".join(d for d in differences + prompt.match.changes if d)[: RECORD_ROOM // 8],
            retry_of=self.undelivered.get(call.key),
            delivered=delivered,
            finish_reason=generation.finish_reason,
            spans=tuple(generation.spans),
            engine=self.engine,
            temperature=call.temperature,
            sampling=msgspec.json.encode(call.sampling).decode(),
            cached_tokens=generation.cached_tokens,
            started_us=call.started_us,
            finished_us=now_us,
        )
        arrays = 4 * (event.n_context + 2 * event.n_output)
        try:
            event.check()
            if arrays > EVENT_BYTES_MAX - RECORD_ROOM:
                raise EventError(
                    f"{event.event_id}: {arrays} bytes of ids and log-probabilities, an event holds "
                    f"{EVENT_BYTES_MAX - RECORD_ROOM}; shorten the messages that are new in one call"
                )
        except EventError as error:
            raise Rejected(502, "call_not_recordable", str(error)) from error
        return event

    def _relation(self, prompt: Prompt, parent: int | None, shared: int) -> str:
        if parent is not None and shared == self._lengths[parent] and not prompt.match.repeats:
            return "extends"
        return "branches" if parent is not None and prompt.match.depth else "restarts"

    @staticmethod
    def _token(parent: int | None, shared: int) -> str:
        return "" if parent is None else f"token {shared} differs from call {parent}"

    def _parse(self, prompt: Prompt, output: Ids, finish_reason: str) -> Parsed:
        stopped = len(output) > 0 and int(output[-1]) in self.renderer.stop_ids
        text = self.renderer.decode(output[:-1] if stopped else output)
        return parse(text, cut=finish_reason == "length", thinking=prompt.thinking)

    def _answer(
        self, call_id: int, call: Call, generation: Generation, parsed: Parsed, now_us: int
    ) -> Answer:
        calls = []
        for name, arguments in parsed.calls:
            minted = f"call_{len(self._minted):08d}"
            self._minted[minted] = _Minted(call_id, name, arguments, now_us)
            calls.append(ToolCall(minted, name, arguments))
        finish = "tool_calls" if calls and generation.finish_reason == "stop" else generation.finish_reason
        return Answer(
            call_id=call_id,
            text=parsed.text,
            reasoning=parsed.reasoning,
            calls=tuple(calls),
            finish=finish,
            prompt_tokens=len(call.prompt.ids),
            completion_tokens=len(generation.output_ids),
            cached_tokens=generation.cached_tokens or 0,
            created_us=now_us,
        )

    def went_out(self, recorded: Recorded, now_us: int) -> None:
        """The answer left: its tool calls run from now on."""
        for call in recorded.answer.calls if recorded.answer else ():
            self._minted[call.id].sent_us = now_us

    def take_back(self, call: Call, recorded: Recorded) -> None:
        """The answer did not reach the harness: nothing may extend it, and the same request is a retry."""
        self._matcher.retract(recorded.event.call_id, recorded.input_len)
        if recorded.turn:
            self._history.take_back(recorded.place, recorded.turn)
        self.undelivered[call.key] = recorded.event.call_id
