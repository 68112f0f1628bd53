"""What a dialect is: bytes of a protocol to the neutral form, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ingest.proxy.neutral import Answer, Rejected, Request


class Reply(Protocol):
    """One streamed reply to one client, from its first byte to its last; made for it alone.

    begin, then alive as often as it takes, then finish or fail.
    """

    def begin(self, prompt_tokens: int) -> bytes:
        """Sent at once with the headers: what the protocol opens a stream with."""

    def alive(self, waited_s: float) -> bytes:
        """What holds the stream open, in the protocol's own words; `waited_s` seconds after `begin`."""

    def finish(self, answer: Answer) -> bytes:
        """The whole answer, the end of the stream included."""

    def fail(self, rejected: Rejected) -> bytes:
        """The event that ends a stream which cannot be answered."""


class Dialect(Protocol):
    """A protocol of harnesses.  It holds no state: every method is a function of its arguments."""

    name: str
    """`chat`, `responses` or `anthropic`: what `Request.dialect` says."""

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Request:
        """Header names are lower case.  Raises Rejected (400) for what it does not understand or honour."""

    def answer(self, request: Request, answer: Answer) -> bytes:
        """The whole reply, not streamed."""

    def reply(self, request: Request) -> Reply:
        """A streamed reply."""

    def error(self, rejected: Rejected) -> bytes:
        """The body of a reply that is not 200."""
