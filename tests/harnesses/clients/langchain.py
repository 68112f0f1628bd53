"""LangChain: its agent on chat completions, responses and Anthropic messages, streamed and not.

A call with malformed arguments is no call to it: the agent takes the turn for its answer, and ends.
"""

from __future__ import annotations

from tests.harnesses.clients.sdks import MALFORMED, ODD, UNKNOWN, WHOLE, agent, flight, short

CLIENT = agent(
    "langchain",
    "chat",
    "langchain_agent.py",
    {
        "main": flight("chat", ODD, UNKNOWN),
        "malformed": flight("chat", ODD, MALFORMED, ends=True),
        "chat-streamed": flight("chat-streamed", ODD, UNKNOWN),
        "responses": flight("responses", ODD, UNKNOWN),
        "responses-streamed": flight("responses-streamed", ODD, UNKNOWN),
        "anthropic": flight("anthropic", *WHOLE),
        "anthropic-streamed": flight("anthropic-streamed", ODD, UNKNOWN),
        **short("chat-streamed"),
    },
    LANGSMITH_TRACING="false",
)
