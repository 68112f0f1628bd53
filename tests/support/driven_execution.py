"""An execution driven without HTTP or engine: requests in, sampled ids in, events out."""

from __future__ import annotations

import asyncio
import json

import numpy as np

from ingest.engines.client import Generation
from ingest.identity import Identity
from ingest.proxy.calls import Call
from ingest.proxy.dialects.chat import Chat
from ingest.proxy.execution import Execution, Recall, Recorded
from lake.events import ModelCalled, ids_from_bytes

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


def whole(events: dict[int, ModelCalled], call_id: int) -> list[int]:
    """A call's whole sequence from its event and its ancestors' (design note trajectories.md)."""
    event = events[call_id]
    shared = [] if event.parent_call_id is None else whole(events, event.parent_call_id)[: event.shared_len]
    assert len(shared) == event.shared_len
    return shared + ids_from_bytes(event.context_ids).tolist() + ids_from_bytes(event.output_ids).tolist()


class Driven:
    """`ask` is one call; the last prompt is `ids`, the answer as a chat message is returned."""

    def __init__(self, renderer):
        self.renderer = renderer
        self.execution = Execution(Identity("g-1", "e-1"), renderer, "scripted", 0)
        self.events: dict[int, ModelCalled] = {}
        self.prompts: list[list[int]] = []
        self.recorded: list[Recorded] = []
        self.calls: list[Call] = []
        loop = asyncio.new_event_loop()
        self._gone = loop.create_future()
        loop.close()

    def recall(self) -> None:
        """Go on in another process: with what the log holds, and nothing else."""
        self.execution = Execution(Identity("g-1", "e-1"), self.renderer, "scripted", 0)
        returned = {t.tool_call_id for call in self.calls for t in call.tools}
        self.execution.recall(Recall(list(self.events.values()), set(), returned))

    @property
    def event(self) -> ModelCalled:
        return self.events[max(self.events)]

    def encode(self, text):
        return self.renderer.encode(text).tolist()

    def ask(self, messages, say, *, stop=True, delivered=True, tools=TOOLS, **body):
        """`say`: text, or the very ids.  Returns the assistant message that a client would keep."""
        ids = (
            self.encode(say) + ([self.renderer.stop_ids[-1]] if stop else []) if isinstance(say, str) else say
        )
        request = Chat().parse(json.dumps({"messages": messages, "tools": tools, **body}).encode(), {})
        recorded = self.take(request, ids, stop=stop, delivered=delivered)
        if recorded.answer is None:
            return None
        return json.loads(Chat().answer(request, recorded.answer))["choices"][0]["message"]

    def take(self, request, ids, *, stop=True, delivered=True, logprobs=None) -> Recorded:
        """One call of any dialect's request, with the ids that the engine samples."""
        match = self.execution.history.match(request.messages)
        key = request.digest("main", match.place)
        prompt = self.execution.prompt(request, match)
        call = Call(
            self.execution, request, "main", key, match, prompt, 1.0, 100, 0,
            self._gone, self.execution.tool_events(request, 7),
        )  # fmt: skip
        generation = Generation(
            output_ids=np.array(ids, np.int32),
            output_logprobs=np.full(len(ids), -0.5, np.float32) if logprobs is None else logprobs,
            finish_reason="stop" if stop else "length",
            spans=(),
            cached_tokens=0,
            weight_version=0,
        )
        recorded = self.execution.record(call, generation, delivered=delivered, now_us=5)
        self.events[recorded.event.call_id] = recorded.event
        self.prompts.append(prompt.ids.tolist())
        self.recorded.append(recorded)
        self.calls.append(call)
        assert whole(self.events, recorded.event.call_id) == prompt.ids.tolist() + ids
        return recorded


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def result(message, text, k=0):
    """The tool message that answers call `k` of an assistant message."""
    return {"role": "tool", "tool_call_id": message["tool_calls"][k]["id"], "content": text}


def call_text(arguments, name="bash"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
