"""One execution, captured by the code that runs it.

    open --call, tool, score--> open --finish--> finished: execution.finished, execution.scored

Each method returns when the log has acknowledged.  From an event loop: `async with`, and `await
asyncio.to_thread(capture.call, ...)`.  Methods may be called from several threads: calls get their ids, and
with them their places in the tree, in the order in which they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from ingest.capturing.appending import Appender
from ingest.capturing.arrays import CaptureError, logprobs_of, spans_of, token_ids
from ingest.engines.answer import EngineRefused, Generation, read_answer
from ingest.matching import EMPTY, Ids, Matcher, relation_of
from lake.events import (
    STATUSES,
    EventError,
    ExecutionFinished,
    ExecutionScored,
    ModelCalled,
    ToolCalled,
    VersionSpan,
    ids_to_bytes,
    logprobs_to_bytes,
)
from lake.log import now_us
from lake.wire import EVENT_BYTES_MAX

EVALUATOR = "capture"
RECORD_ROOM = 16 << 10  # what a call's record holds beside its arrays, at most
TOOL_STATUSES = ("ok", "error", "unknown")
UNSCORED = ("crashed", "overall_timeout")
"""How an execution may end that has no score."""

Version = int | Sequence[tuple[int | None, int, int]] | VersionSpan | None


class Capture:
    """An execution that its own code captures; use it with `with` or `async with`.

    Leaving the block ends the execution: `completed`, or `crashed` where an exception leaves it; without
    a score it is assessed `missing`.  An interrupt (Ctrl-C, SystemExit) ends nothing: opened again under
    the same name it goes on after what the log has, as it does where the process was killed.
    """

    def __init__(
        self,
        appender: Appender,
        *,
        group_id: str,
        execution_id: str,
        index: int,
        role: str = "main",
        version: Version = None,
        engine: str = "",
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.group_id, self.execution_id, self.index = group_id, execution_id, index
        self._role, self._version, self._engine = role, version, engine
        self._appender = appender
        self._after = contextlib.ExitStack()
        self._after.callback(closed)
        self._lock = threading.Lock()
        self._matcher = Matcher()
        self._lengths: list[int] = []  # of whole sequences, by call id
        self._tools: set[str] = set()
        self._score: ExecutionScored | None = None
        self._status = ""
        self._torn = False  # an interrupt came between the log and what is known here

    def recall(self, calls: Sequence[ModelCalled], tools: set[str], score: ExecutionScored | None) -> None:
        """Go on after what the log has of the execution.  Raises CaptureError where calls are missing."""
        if [c.call_id for c in calls] != list(range(len(calls))):
            raise CaptureError(
                f"execution {self.execution_id} has calls in the log that do not follow each other: somebody "
                "else captures it; give another execution"
            )
        self._matcher = Matcher.restored(
            [c if c.delivered else msgspec.structs.replace(c, output_ids=b"") for c in calls]
        )
        self._lengths = [c.shared_len + c.n_context + c.n_output for c in calls]
        self._tools, self._score = set(tools), score

    def close(self) -> None:
        """Let go of the execution without ending it: others may go on with it.  `with` does it by itself."""
        self._after.close()

    def then(self, after: Callable[[], None]) -> None:
        """Do this too when the execution is let go of."""
        self._after.callback(after)

    @property
    def calls(self) -> int:
        """Calls so far: their ids are 0 to this number less one."""
        return len(self._lengths)

    # ------------------------------------------------------------------------------------ calls
    def call(
        self,
        input_ids: Any,
        output_ids: Any,
        output_logprobs: Any,
        *,
        role: str | None = None,
        version: Version = None,
        finish_reason: str = "stop",
        temperature: float = 1.0,
        sampling: Mapping[str, Any] | None = None,
        started_us: int | None = None,
        finished_us: int | None = None,
        cached_tokens: int | None = None,
        delivered: bool = True,
        retry_of: int | None = None,
        engine: str | None = None,
    ) -> int:
        """Record one call of the model; its id.

        input_ids        the whole prompt, as it was asked (what earlier calls share with it is found)
        output_ids       every token that was sampled, the stop token too
        output_logprobs  of each, of the temperature-scaled distribution before top-p and top-k; or None
        role             one of lake.events.ROLES (default: the capture's)
        version          of the policy: a number, (version, first token, end)s, None where it is not known
        delivered        whether the answer was used; one that was not is no target, and nothing extends it
        retry_of         the call that was asked before in vain
        Times are microseconds since 1970 (default: now).  Raises CaptureError and EventError (both are
        ValueErrors; nothing is recorded then), CaptureLost where the log does not acknowledge.
        """
        ids, output = token_ids("input_ids", input_ids), token_ids("output_ids", output_ids)
        if not len(ids):
            raise CaptureError("input_ids is empty; a call has a prompt")
        logprobs = logprobs_of("output_logprobs", output_logprobs, len(output))
        started, finished = _times(started_us, finished_us)
        if not (isinstance(temperature, int | float) and 0 <= temperature < math.inf):
            raise CaptureError(f"temperature is {temperature!r}; a finite number, 0 or more, is needed")
        wanted = self._version if version is None else version
        made = {
            "time_us": finished,
            "group_id": self.group_id,
            "execution_id": self.execution_id,
            "role": self._role if role is None else role,
            "output_ids": ids_to_bytes(output),
            "output_logprobs": None if logprobs is None else logprobs_to_bytes(logprobs),
            "delivered": bool(delivered),
            "finish_reason": finish_reason,
            "spans": spans_of(wanted, len(output)),
            "engine": self._engine if engine is None else engine,
            "temperature": float(temperature),
            "sampling": _json(
                "sampling", {"temperature": temperature} if sampling is None else dict(sampling)
            ),
            "cached_tokens": cached_tokens,
            "started_us": started,
            "finished_us": finished,
        }
        with self._lock:
            event = self._place(ids, output, retry_of, made)
            with self._whole():
                waiting = self._appender.put([event], 4 * event.n_context + 8 * event.n_output)
                self._matcher.insert(event.call_id, ids, output if event.delivered else EMPTY)
                self._lengths.append(len(ids) + len(output))
        self._appender.wait(waiting)
        return event.call_id

    def _place(self, ids: Ids, output: Ids, retry_of: int | None, made: Mapping[str, Any]) -> ModelCalled:
        """The event of the next call, checked; nothing is changed."""
        self._check_open()
        self._check_call("retry_of", retry_of)
        parent, shared = self._matcher.longest_prefix(ids)
        relation, difference = relation_of(parent, shared, 0 if parent is None else self._lengths[parent])
        event = ModelCalled(
            call_id=self.calls,
            parent_call_id=parent,
            shared_len=shared,
            context_ids=ids_to_bytes(ids[shared:]),
            relation=relation,
            difference=difference,
            retry_of=retry_of,
            **made,
        )
        _check(event, 4 * event.n_context + 8 * event.n_output)
        return event

    def sglang(self, input_ids: Any, answer: bytes | str, **call: Any) -> tuple[int, Generation]:
        """Record a call out of the body of SGLang's `/generate` answer: the call's id, and what was sampled.

        The request has `input_ids` and `return_logprob`.  The ids, log-probabilities, versions, finish
        reason and cached tokens are the answer's; the rest is given as for `call`.  Raises CaptureError for
        an answer that cannot be trusted: a token without its log-probability, or the other way round.
        """
        body = answer.encode() if isinstance(answer, str) else answer
        try:
            said = read_answer(body, vocab_size=None)
        except EngineRefused as error:
            raise CaptureError(str(error)) from error
        version: Any = said.spans or said.weight_version
        found: dict[str, Any] = {
            "finish_reason": said.finish_reason,
            "cached_tokens": said.cached_tokens,
            "version": [(s.version, s.start, s.end) for s in version] if said.spans else version,
        }
        return self.call(input_ids, said.output_ids, said.output_logprobs, **(found | call)), said

    # ---------------------------------------------------------------------------- tools and score
    def tool(
        self,
        name: str,
        arguments: str | bytes,
        result: str | bytes,
        *,
        call_id: int | None = None,
        status: str = "unknown",
        tool_call_id: str | None = None,
        started_us: int | None = None,
        stopped_us: int | None = None,
    ) -> str:
        """Record one tool call: what the model wrote, byte for byte, and what came back; its id.

        call_id  the model call that asked for it;  status  ok, error or unknown.
        Raises CaptureError where the tool call is there already, CaptureLost.
        """
        if status not in TOOL_STATUSES:
            raise CaptureError(f"status is {status!r}, not one of {', '.join(TOOL_STATUSES)}")
        stopped = now_us() if stopped_us is None else stopped_us
        with self._lock:
            self._check_open()
            self._check_call("call_id", call_id)
            minted = self._minted(call_id) if tool_call_id is None else tool_call_id
            if minted in self._tools:
                raise CaptureError(f"tool call {minted} is recorded already; each has an id of its own")
            event = ToolCalled(
                time_us=stopped,
                group_id=self.group_id,
                execution_id=self.execution_id,
                tool_call_id=minted,
                call_id=call_id,
                name=name,
                arguments=arguments.encode() if isinstance(arguments, str) else bytes(arguments),
                result=result.encode("utf-8", "replace") if isinstance(result, str) else bytes(result),
                started_us=stopped if started_us is None else started_us,
                stopped_us=stopped,
                status=status,
            )
            _check(event, len(event.arguments) + len(event.result))
            with self._whole():
                waiting = self._appender.put([event], len(event.arguments) + len(event.result))
                self._tools.add(minted)
        self._appender.wait(waiting)
        return minted

    def _minted(self, call_id: int | None) -> str:
        """The next free id of a call's tool calls, in the form of the proxy's."""
        stem, k = "tool" if call_id is None else f"call_{call_id:06d}", 0
        while f"{stem}_{k:02d}" in self._tools:
            k += 1
        return f"{stem}_{k:02d}"

    def score(
        self, value: float | None, *, detail: str = "", evaluator: str = EVALUATOR, partial: bool = False
    ) -> None:
        """Assess the execution; None: the score is missing, and never 0.  Said again, the last one counts.

        `partial`: the harness ran out of time, and this is what it had.  Raises CaptureError, CaptureLost.
        """
        if value is not None and (isinstance(value, bool | str | bytes) or not _finite(value)):
            raise CaptureError(f"score is {value!r}; a finite number is needed, None where it is missing")
        if value is not None and self._status in UNSCORED:
            raise CaptureError(f"execution {self.execution_id} ended with {self._status}: it has no score")
        assessment = "missing" if value is None else "partial" if partial else "scored"
        with self._lock:
            event = ExecutionScored(
                time_us=now_us(),
                group_id=self.group_id,
                execution_id=self.execution_id,
                assessment=assessment,
                value=None if value is None else float(value),
                evaluator=evaluator,
                version=self._score.version + 1 if self._score else 0,
                detail=detail,
            )
            _check(event, len(detail))
            waiting = self._appender.put([event])
            self._score = event
        self._appender.wait(waiting)

    # ----------------------------------------------------------------------------------- the end
    def finish(self, status: str = "completed", detail: str = "") -> None:
        """End the execution: it takes no more calls.  Again: nothing.

        Status `completed`, `harness_timeout`, `overall_timeout` or `crashed`; the last two have no score.
        Raises CaptureError, CaptureLost.
        """
        if status not in STATUSES or status == "lost":
            allowed = ", ".join(s for s in STATUSES if s != "lost")
            raise CaptureError(f"status is {status!r}, not one of {allowed}")
        with self._lock:
            if self._status:
                return
            self._check_open()
            event = ExecutionFinished(
                time_us=now_us(),
                group_id=self.group_id,
                execution_id=self.execution_id,
                status=status,
                calls=self.calls,
                detail=detail,
            )
            _check(event, len(detail))
            waiting = self._appender.put([event])
            self._status = status
        self._appender.wait(waiting)
        if status in UNSCORED and (self._score is None or self._score.value is not None):
            self.score(None, detail=detail or status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._after:
            if self._torn:
                return
            if kind is None:
                self.finish()
                if self._score is None:
                    self.score(None, detail="no score was given")
            elif issubclass(kind, Exception | asyncio.CancelledError):
                with contextlib.suppress(RuntimeError):  # what left the block says more than a lost log
                    self.finish("crashed", f"{kind.__name__}: {error}"[:4096])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What happens in it happens to the end, or nothing more does."""
        try:
            yield
        except BaseException:
            self._torn = True
            raise

    def _check_open(self) -> None:
        if self._torn:
            raise CaptureError(
                f"execution {self.execution_id} was interrupted while it was recorded; close the capture and "
                "open it anew: it goes on after what the log has"
            )
        if self._status:
            raise CaptureError(f"execution {self.execution_id} has ended ({self._status}); it takes no more")

    def _check_call(self, name: str, call_id: int | None) -> None:
        whole = isinstance(call_id, int) and not isinstance(call_id, bool)
        if call_id is not None and not (whole and 0 <= call_id < self.calls):
            raise CaptureError(f"{name} is {call_id!r}; this execution has {self.calls} calls, from 0 on")


def _times(started_us: int | None, finished_us: int | None) -> tuple[int, int]:
    """Of a call; now where they are not said."""
    finished = now_us() if finished_us is None else finished_us
    started = finished if started_us is None else started_us
    if not 0 <= started <= finished:
        raise CaptureError(
            f"started_us is {started}, finished_us {finished}; microseconds since 1970, in that order"
        )
    return started, finished


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _json(name: str, value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise CaptureError(f"{name} is not JSON: {error}") from error


def _check(event: Any, size: int) -> None:
    """Whether the log takes an event; after this only its being away can keep the event out."""
    event.check()
    if size > EVENT_BYTES_MAX - RECORD_ROOM:
        raise EventError(
            f"{event.event_id}: {size} bytes, an event holds {EVENT_BYTES_MAX - RECORD_ROOM}; record less"
        )
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=type(event))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise EventError(f"{event.event_id}: a field cannot be written: {error}") from error
