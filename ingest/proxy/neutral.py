"""The neutral form between dialects and the core: what is asked and what is answered.

A dialect turns the bytes of its protocol into a `Request` and an `Answer` into its bytes; nothing
behind it knows which protocol a harness speaks.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

MESSAGE_ROLES = ("system", "user", "assistant", "tool")


class Rejected(Exception):
    """A request that is not served: HTTP status, a short code, and a sentence for a person.

    `numbers` of a prompt that is too long: its tokens and the bound, for clients that read them.
    """

    def __init__(self, status: int, code: str, sentence: str, numbers: tuple[int, int] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.sentence = sentence
        self.numbers = numbers


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool; `arguments` is JSON text exactly as it was written."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message; content lists are folded to text, an absent content to "".

    `reasoning` None: not sent.  `calls` stand on assistant messages; `call_id` names the call that a
    tool's message answers, `failed` whether that tool failed (None: the protocol does not say).
    """

    role: str
    text: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    failed: bool | None = None


class Sampling(msgspec.Struct, frozen=True):
    """How to sample; None where the request leaves it to the run's configuration."""

    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = -1


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    `tools`, in the form of chat completions, and `options` go to the chat template.  `names` is the
    dialect's own: what it needs to word the answer (a tool's rendered name -> what its protocol calls it).
    `deferred` are tools that the template is not given, since messages hold their schemas; the policy
    may call them like any other.
    """

    dialect: str = "chat"
    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()
    deferred: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    new_tokens_max: int | None = None
    stream: bool = False
    include_usage: bool = False
    model: str = ""
    names: dict[str, Any] = {}

    def digest(self, role: str, place: bytes) -> bytes:
        """What makes two requests the same: all but how the answer is delivered and how long it may be.

        `place` stands for the messages (ingest.proxy.history).
        """
        same = (role, place, self.tools, self.options, self.sampling, self.model)
        return hashlib.blake2b(msgspec.json.encode(same), digest_size=16).digest()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy said, taken apart.  `finish` is `stop`, `length` or `tool_calls`."""

    call_id: int
    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_us: int
