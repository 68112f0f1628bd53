"""One execution of courier over HTTP, as any agent would: it knows messages, never tokens.

    main, context 1   find -> take -> ask -----------------> summary {"tag":..,"door":..}
                                        \\              /        (role main-summary)
    sub-agent (clerk)                    look -> {"door":..}
    main, context 2   (system, summary) deliver -> "done"

`conversation` is the harness without a network: a generator that yields requests and is sent the
assistant's messages.  `run_courier` carries it over Chat Completions.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from dataclasses import dataclass, field

import aiohttp
import msgspec

from ingest.courier import task as world
from ingest.courier.accidents import ASK_AGAIN_S, NONE, Accidents, EvaluatorCrashed
from ingest.courier.chat import Completion, Message, dumps, only_call
from ingest.courier.task import Task, Workspace, checks, parse_task, score
from ingest.rollouts.harnesses import Assessed, Assignment, ProxyLost, Setting

MAIN_SYSTEM = "Courier. Tools: find take ask deliver"
SUB_SYSTEM = "Clerk. Tools: look"
ORDER = "Order {order}"
QUESTION = "Door? {question}"
COMPACT = "Context full. Summarise."
RESUME = "Summary {summary}"
TURNS = 3  # find, take, ask: then the context counts as full

CALLS_MAX = 12
ANSWER_BYTES_MAX = 1 << 20
PROXY_STATUSES = (401, 403, 404, 409, 429)  # and 500 up: nothing that a harness could have done better


@dataclass(frozen=True)
class Request:
    """A model call: its role goes into the URL, its messages into the body."""

    role: str  # main | main-summary | sub-agent
    messages: tuple[Message, ...]


@dataclass
class Outcome:
    """How an execution ended, and what it left."""

    workspace: Workspace = field(default_factory=Workspace)
    status: str = "completed"  # completed | harness_timeout


Step = Generator[Request, Message, str]


class _Stopped(Exception):
    """The harness's own limit on calls."""


class _ContextFull(Exception):
    """The prompt is too long for the model: no further call can succeed."""


class _Conversation:
    """The calls of one execution, counted against the harness's limit."""

    def __init__(self, task: Task, workspace: Workspace, calls_max: int) -> None:
        self.task, self.workspace, self.calls_left = task, workspace, calls_max

    def say(self, role: str, messages: list[Message]) -> Generator[Request, Message, Message]:
        if self.calls_left == 0:
            raise _Stopped
        self.calls_left -= 1
        answer = yield Request(role, tuple(messages))
        messages.append(answer)
        return answer

    def clerk(self, question: world.Arguments) -> Step:
        """The sub-agent: its last text, which is pasted where it was asked for."""
        messages = _begin(SUB_SYSTEM, QUESTION.format(question=dumps(question)))
        while call := only_call(answer := (yield from self.say("sub-agent", messages))):
            tool, arguments = call
            entry = world.look(self.task, arguments) if tool == "look" else None
            messages += _results(answer, dumps(entry) if entry else "unknown")
        if noted := re.fullmatch(r'\{"door":([0-9]{1,9})\}', answer.text):
            self.workspace.noted = int(noted[1])
        return answer.text

    def use(self, answer: Message) -> Step:
        """The result of what the main agent calls."""
        tool, arguments = only_call(answer) or ("", {})
        if tool == "find" and (place := world.find(self.task, self.workspace, arguments)):
            return dumps(place)
        if tool == "take":
            label = world.take(self.task, self.workspace, arguments)
            return dumps(label) if label else "empty"
        if tool == "ask" and world.ask(self.task, self.workspace, arguments):
            return (yield from self.clerk(arguments))
        if tool == "deliver":
            self.workspace.delivered = arguments
            return "signed"
        return "error"

    def main(self) -> Generator[Request, Message, None]:
        messages = _begin(MAIN_SYSTEM, ORDER.format(order=dumps(self.task.order)))
        for _ in range(TURNS):
            answer = yield from self.say("main", messages)
            messages += _results(answer, (yield from self.use(answer)))
        messages.append(Message(role="user", content=COMPACT))
        summary = yield from self.say("main-summary", messages)
        messages = _begin(MAIN_SYSTEM, RESUME.format(summary=summary.text))
        while only_call(answer := (yield from self.say("main", messages))):
            messages += _results(answer, (yield from self.use(answer)))


def _begin(system: str, user: str) -> list[Message]:
    return [Message(role="system", content=system), Message(role="user", content=user)]


def _results(answer: Message, text: str) -> list[Message]:
    """What the agent is told.  Where it called nothing, there is no call to answer: a user says it."""
    if not answer.calls:
        return [Message(role="user", content=text)]
    return [Message(role="tool", content=text, tool_call_id=call.id) for call in answer.calls]


def conversation(
    task: Task, outcome: Outcome, calls_max: int = CALLS_MAX
) -> Generator[Request, Message, None]:
    """The requests of one execution, in order; each is sent the assistant's message.

    `outcome` is kept up to date throughout, so that it holds whenever the generator is dropped.
    After `calls_max` calls the harness is out of time.
    """
    try:
        yield from _Conversation(task, outcome.workspace, calls_max).main()
    except _Stopped:
        outcome.status = "harness_timeout"


# ------------------------------------------------------------------------------------- over HTTP
_encode = msgspec.json.Encoder().encode
_completion = msgspec.json.Decoder(Completion)


class _Body(msgspec.Struct):
    """A Chat Completions request.  No `tools`: the system text names them, as the model learned it."""

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"{response.url.path}: an answer of over {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


async def _post(http: aiohttp.ClientSession, url: str, headers: dict[str, str], body: bytes) -> Message:
    try:
        async with http.post(url, data=body, headers=headers) as response:
            text = await _read(response)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise ProxyLost(f"{url}: {type(error).__name__}: {error}") from error
    if response.status == 200:
        return _completion.decode(text).choices[0].message
    said = f"{url}: {response.status}: {text[:500].decode(errors='replace')}"
    if response.status in PROXY_STATUSES or response.status >= 500:
        raise ProxyLost(said)
    if response.status == 400 and b"context_length_exceeded" in text:
        raise _ContextFull
    raise RuntimeError(said)


async def run_courier(
    task: str,
    *,
    base_url: str,
    api_key: str,
    http: aiohttp.ClientSession,
    accidents: Accidents = NONE,
    calls_max: int = CALLS_MAX,
    tokens_max: int = 32,
    temperature: float = 1.0,
    outcome: Outcome | None = None,
) -> Outcome:
    """Carry out one task against the model behind `base_url`, and return how it ended.

    `outcome`, where given, is what is returned; it holds the workspace even if this is cancelled.
    A prompt that is too long for the model ends the execution as its last word would.  Raises
    TaskError for a text that is no task, ProxyLost when the server cannot be reached or refuses the
    execution, RuntimeError for any other refusal.
    """
    outcome = outcome or Outcome()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    limit = calls_max if accidents.stop_after is None else min(calls_max, accidents.stop_after)
    talk, sent = conversation(parse_task(task), outcome, limit), 0

    async def answer(request: Request) -> Message:
        nonlocal sent
        path = "" if request.role == "main" else f"/{request.role}"
        url = f"{base_url}{path}/v1/chat/completions"
        body = _encode(_Body("policy", request.messages, tokens_max, temperature))
        while True:
            patience_s = accidents.hangs_up_after_s(sent)
            sent += 1
            try:
                async with asyncio.timeout(patience_s):  # cancelled, aiohttp closes the connection
                    return await _post(http, url, headers, body)
            except TimeoutError as error:
                if patience_s is None:
                    raise ProxyLost(f"{url}: no answer in time") from error
                await asyncio.sleep(ASK_AGAIN_S)

    try:
        request = next(talk)
        while True:
            request = talk.send(await answer(request))
    except (StopIteration, _ContextFull):
        return outcome


class CourierExecution:
    """One execution, for the runner."""

    def __init__(self, setting: Setting, assignment: Assignment) -> None:
        self._task = parse_task(assignment.task)
        self._setting, self._assignment = setting, assignment
        self._accidents = Accidents.drawn(setting.seed, assignment.group_id, assignment.index)
        self._outcome = Outcome()

    async def run(self) -> str:
        await run_courier(
            self._assignment.task,
            base_url=self._assignment.base_url,
            api_key=self._assignment.api_key,
            http=self._setting.http,
            accidents=self._accidents,
            tokens_max=self._setting.rollout.new_tokens_max,
            temperature=self._setting.rollout.temperature,
            outcome=self._outcome,
        )
        return self._outcome.status

    async def assess(self) -> Assessed:
        if self._accidents.evaluator_crashes:
            raise EvaluatorCrashed("the evaluator crashed on purpose, as it does for 2% of executions")
        return Assessed(
            score(self._task, self._outcome.workspace), dumps(checks(self._task, self._outcome.workspace))
        )


class Courier:
    """The built-in harness, named `courier`."""

    evaluator = "courier"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def prepare(self, assignment: Assignment) -> CourierExecution:
        """Raises TaskError where the task is not courier's."""
        return CourierExecution(self._setting, assignment)
