"""One execution: its history and its tree, and the events that both become.

No input or output here and no clock: times are arguments, so that what a call becomes is a function
of what came before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ingest.engines.client import Generation
from ingest.identity import Identity
from ingest.matching import EMPTY, Ids, Matcher, MatchingError
from ingest.proxy.history import LOST, SENT, History, Match, Turn, calls_of, digest, of_minted
from ingest.proxy.neutral import Answer, Message, Rejected, Request
from ingest.proxy.parsing import Parsed, parse
from ingest.proxy.prompting import Prompt, make_prompt
from ingest.proxy.rendering import Renderer
from lake.events import (
    EventError,
    ModelCalled,
    ToolCalled,
    ids_from_bytes,
    ids_to_bytes,
    logprobs_to_bytes,
)
from lake.experts import covered
from lake.wire import EVENT_BYTES_MAX

if TYPE_CHECKING:
    from ingest.proxy.calls import Call

RECORD_ROOM = 16 << 10  # what a call's record holds beside its arrays, at most
OPENING_TOKENS = 16  # at the end of a prompt, enough to see whether it opens a think block
TURN_BYTES = 1600  # of memory, about: a turn and its place, beside its ids
MESSAGE_BYTES = 400  # of memory, about: a message of the path


@dataclass(slots=True, eq=False)
class Recorded:
    """A call that is in the tree: the event for the log, its turn if it can be continued, the answer."""

    event: ModelCalled
    turn: Turn | None
    answer: Answer | None


@dataclass(frozen=True)
class Recall:
    """What the log holds of an execution: its calls in their order, and of the others what counts here.

    `undelivered`: calls whose reply is known to be lost; `returned`: tool calls whose result is recorded.
    """

    calls: list[ModelCalled] = field(default_factory=list)
    undelivered: set[int] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)


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
    used_us: int = 0
    running: set[Call] = field(default_factory=set)  # those that were given up and end among them
    handling: set[asyncio.Future[None]] = field(default_factory=set)
    sessions: dict[str, str] = field(default_factory=dict)  # what the rules of roles remember
    history: History = field(default_factory=History)
    _undelivered: dict[tuple[bytes, str], int] = field(default_factory=dict)  # the call to retry
    _matcher: Matcher = field(default_factory=Matcher)
    _lengths: list[int] = field(default_factory=list)
    _experts_end: list[int] = field(default_factory=list)  # of each call: up to where its path has rows
    _messages: int = 0
    _outputs: int = 0  # bytes of the turns' ids
    _outstanding: dict[str, tuple[str, str]] = field(default_factory=dict)  # name and arguments, by tool call

    # ------------------------------------------------------------------------------- what is asked
    def prompt(self, request: Request, match: Match) -> Prompt:
        """The ids of a request.  Raises Rejected where the template refuses it."""
        for turn in match.turns.values():
            turn.reply = SENT  # who goes on after a reply has got it
        return make_prompt(request, match, self._matcher, self.renderer, now_us=self.started_us)

    def experts_start(self, prompt: Prompt) -> int:
        """The first token of a prompt whose routed experts no call before it on its path has brought."""
        return self._experts_known(*self._matcher.longest_prefix(prompt.ids, prompt.base))

    def _experts_known(self, parent: int | None, shared: int) -> int:
        return covered(shared, None if parent is None else self._experts_end[parent])

    def tool_events(self, request: Request, now_us: int) -> list[ToolCalled]:
        """One event for each result that a request brings for the first time."""
        found = (self._result(m, request, now_us) for m in request.messages if m.role == "tool")
        return [event for event in found if event is not None]

    def _result(self, message: Message, request: Request, now_us: int) -> ToolCalled | None:
        known = of_minted(message.call_id)
        turn = self.history.turns.get(known[0]) if known else None
        if known is None or turn is None or known[1] >= len(turn.calls) or known[1] in turn.returned:
            return None
        turn.returned.add(known[1])
        name, arguments = self._outstanding.pop(message.call_id, ("", ""))
        if not name:  # of another process, or it was let go of
            name, arguments = self._parsed(turn, request).calls[known[1]]
        return ToolCalled(
            time_us=now_us,
            group_id=self.identity.group_id,
            execution_id=self.identity.execution_id,
            tool_call_id=message.call_id,
            call_id=turn.call_id,
            name=name,
            arguments=arguments.encode(),
            result=message.text.encode("utf-8", "replace"),
            started_us=turn.sent_us or turn.finished_us,
            stopped_us=now_us,
            status={None: "unknown", True: "error", False: "ok"}[message.failed],
        )

    # ------------------------------------------------------------------------------ what is recorded
    def record(self, call: Call, generation: Generation, *, delivered: bool, now_us: int) -> Recorded:
        """Take a finished call into the tree and give it its id; an answer is made if one can be delivered.

        Ids are given here, so that parents always come earlier and none is left out.
        Raises Rejected (502) for an engine's answer that cannot be trusted, and then changes nothing.
        """
        output = np.asarray(generation.output_ids, np.int32)
        event = self._event(call, generation, output, delivered, now_us)
        prompt, match = call.prompt, call.match
        turn = None
        if delivered:
            turn = self._turn(event, output, len(prompt.ids), prompt.thinking)
            parsed = self._parsed(turn, call.request)
            _describe(turn, parsed, typed=True)
            turn.body, turn.shape, turn.key = prompt.body, prompt.shape, call.key
            turn.reply = LOST  # until it has gone out
            answer = self._answer(turn, parsed)
            self._outstanding |= {c.id: (c.name, c.arguments) for c in answer.calls}
        self._matcher.insert(event.call_id, prompt.ids, output if delivered else EMPTY, prompt.base)
        self._gone_on(event)
        self._kept(event)
        self.calls += 1
        self.history.asked(event.call_id, match)
        self._messages += len(match.places) - match.depth
        if turn is None:
            self._undelivered[match.place, call.role] = event.call_id
            return Recorded(event, None, None)
        self.history.answered(turn)
        self._outputs += output.nbytes
        self._undelivered.pop((match.place, call.role), None)
        return Recorded(event, turn, answer)

    def _kept(self, event: ModelCalled) -> None:
        """What is known of each call by its number: its length, and where its routed experts end."""
        length = event.shared_len + event.n_context + event.n_output
        self._lengths.append(length)
        known = self._experts_known(event.parent_call_id, event.shared_len)
        self._experts_end.append(length - 1 if event.experts else known)

    def _gone_on(self, event: ModelCalled) -> None:
        """Whoever sends tokens of a reply has got it."""
        parent = self.history.turns.get(-1 if event.parent_call_id is None else event.parent_call_id)
        if parent is not None and event.shared_len > parent.prompt_tokens:
            parent.reply = SENT

    def _event(
        self, call: Call, generation: Generation, output: Ids, delivered: bool, now_us: int
    ) -> ModelCalled:
        prompt, match = call.prompt, call.match
        parent, shared = self._matcher.longest_prefix(prompt.ids, prompt.base)
        relation = self._relation(match, parent, shared)
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
            difference="; ".join(d for d in differences + match.changes if d)[: RECORD_ROOM // 8],
            retry_of=self._undelivered.get((match.place, call.role)),
            delivered=delivered,
            finish_reason=generation.finish_reason,
            spans=tuple(generation.spans),
            engine=generation.engine or self.engine,
            temperature=call.temperature,
            sampling=msgspec.json.encode(call.sampling).decode(),
            cached_tokens=generation.cached_tokens,
            started_us=call.started_us,
            finished_us=now_us,
            place=match.place,
            experts=call.experts,
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

    def _relation(self, match: Match, parent: int | None, shared: int) -> str:
        if parent is not None and shared == self._lengths[parent] and not match.repeats:
            return "extends"
        return "branches" if parent is not None and match.depth else "restarts"

    @staticmethod
    def _token(parent: int | None, shared: int) -> str:
        return "" if parent is None else f"token {shared} differs from call {parent}"

    # ------------------------------------------------------------------------------------- turns
    @staticmethod
    def _turn(event: ModelCalled, output: Ids, prompt_tokens: int, thinking: bool) -> Turn:
        """The turn that a recorded call is; what is not in its event is left open."""
        return Turn(
            call_id=event.call_id,
            role=event.role,
            place=event.place,
            output_ids=output,
            prompt_tokens=prompt_tokens,
            cached_tokens=event.cached_tokens or 0,
            finish_reason=event.finish_reason,
            thinking=thinking,
            said=b"",
            thought=None,
            calls=(),
            body=None,
            key=b"",
            finished_us=event.finished_us,
        )

    def _parsed(self, turn: Turn, request: Request | None) -> Parsed:
        output = turn.output_ids
        stopped = len(output) > 0 and int(output[-1]) in self.renderer.stop_ids
        text = self.renderer.decode(output[:-1] if stopped else output)
        return parse(
            text,
            tools=request.tools + request.deferred if request else (),
            cut=turn.finish_reason == "length",
            thinking=turn.thinking,
            form=self.renderer.form,
        )

    def answer(self, turn: Turn, request: Request) -> Answer:
        """The answer that a turn is, made from what was sampled; the same whenever it is made."""
        return self._answer(turn, self._parsed(turn, request))

    @staticmethod
    def _answer(turn: Turn, parsed: Parsed) -> Answer:
        calls = calls_of(turn, parsed.calls)
        return Answer(
            call_id=turn.call_id,
            text=parsed.text,
            reasoning=parsed.reasoning,
            calls=calls,
            finish="tool_calls" if calls and turn.finish_reason == "stop" else turn.finish_reason,
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=len(turn.output_ids),
            cached_tokens=turn.cached_tokens,
            created_us=turn.finished_us,
        )

    def role_of_tool_call(self, tool_call_id: str) -> str | None:
        """The role of the call that made a tool call; None for one that was not made here."""
        known = of_minted(tool_call_id)
        turn = self.history.turns.get(known[0]) if known else None
        return turn.role if turn else None

    @staticmethod
    def sent(turn: Turn, now_us: int) -> None:
        """The answer left: its tool calls run from now on."""
        turn.reply, turn.sent_us = SENT, turn.sent_us or now_us

    # ------------------------------------------------------------------------------ from the log
    def recall(self, recalled: Recall) -> None:
        """Go on, in a new process, with an execution of which the log holds these calls, in their order.

        Raises MatchingError where calls are missing.
        """
        if not recalled.calls:
            return
        missing = set(range(recalled.calls[-1].call_id + 1)) - {c.call_id for c in recalled.calls}
        if missing:
            raise MatchingError(f"calls {sorted(missing)[:10]} are not there")
        kept = [_as_kept(c, recalled.undelivered) for c in recalled.calls]
        self._matcher = Matcher.restored(kept)
        self.started_us = min(c.started_us for c in kept)
        for event, whole in zip(kept, recalled.calls, strict=True):
            self._kept(whole)
            self.history.recall(event.call_id, event.place)
            if not event.delivered:
                self._undelivered[event.place, event.role] = event.call_id
                continue
            output, prompt_tokens = ids_from_bytes(event.output_ids), event.shared_len + event.n_context
            turn = self._turn(event, output, prompt_tokens, self._opens_thinking(event, prompt_tokens))
            _describe(turn, self._parsed(turn, None), typed=not self.renderer.form.typed)
            turn.returned = {k for k, name in enumerate(turn.ids) if name in recalled.returned}
            self.history.answered(turn)
            self._outputs += output.nbytes
            self._undelivered.pop((event.place, event.role), None)
            self._gone_on(event)
        self.calls = kept[-1].call_id + 1

    def _opens_thinking(self, event: ModelCalled, prompt_tokens: int) -> bool:
        """Whether the prompt of a recalled call ends inside a think block."""
        end = ids_from_bytes(event.context_ids)
        if len(end) < OPENING_TOKENS:  # of a call that was asked before, nearly all is its parent's
            end = self._matcher.whole(event.call_id)[:prompt_tokens]
        text = self.renderer.decode(end[-OPENING_TOKENS:])
        return text.rstrip().endswith(self.renderer.form.think[0])

    @property
    def idle(self) -> bool:
        """Whether its state may be let go of: the log holds all of it."""
        busy = self.running or self.handling or self.closing or self.failed
        return not busy and next(iter(self.history.lost), None) is None

    @property
    def nbytes(self) -> int:
        """Of memory, about."""
        turns, messages = TURN_BYTES * len(self.history.turns), MESSAGE_BYTES * self._messages
        return self._matcher.nbytes + self._outputs + turns + messages


def _describe(turn: Turn, parsed: Parsed, *, typed: bool) -> None:
    """What tells whether a message is this turn.

    Without its request's tools, whose schemas type the arguments in some forms (not `typed`), these are open.
    """
    turn.said = digest(parsed.text.strip())
    turn.thought = None if parsed.reasoning is None else digest(parsed.reasoning.strip())
    turn.calls = tuple((name, digest(a) if typed else b"") for name, a in parsed.calls)


def _as_kept(event: ModelCalled, undelivered: Set[int]) -> ModelCalled:
    """A call as the proxy keeps it: an answer that never arrived can be extended by nobody."""
    if event.delivered and event.call_id not in undelivered:
        return event
    return msgspec.structs.replace(event, output_ids=b"", output_logprobs=None, spans=(), delivered=False)
