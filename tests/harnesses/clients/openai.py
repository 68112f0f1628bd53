"""The OpenAI SDK: chat completions and responses, streamed and not."""

from __future__ import annotations

from tests.harnesses.clients.sdks import WHOLE, agent, flight, short

CLIENT = agent(
    "openai",
    "openai_agent.py",
    {
        "main": flight("chat", *WHOLE),
        "chat-streamed": flight("chat-streamed", *WHOLE),
        "responses": flight("responses", *WHOLE),
        "responses-streamed": flight("responses-streamed", *WHOLE),
        **short("chat-streamed"),
    },
)
