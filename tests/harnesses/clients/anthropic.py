"""The Anthropic SDK: messages, streamed and not; models and count_tokens too."""

from __future__ import annotations

from tests.harnesses.clients.sdks import WHOLE, agent, flight, short

CLIENT = agent(
    "anthropic",
    "anthropic_agent.py",
    {
        "main": flight("messages", *WHOLE),
        "messages-streamed": flight("messages-streamed", *WHOLE),
        **short("messages-streamed"),
    },
)
