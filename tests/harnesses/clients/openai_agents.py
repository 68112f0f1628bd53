"""openai-agents: responses and chat completions, streamed and not.

A tool that it does not know ends its run, and so does a streamed response that the token limit cut.
"""

from __future__ import annotations

from tests.harnesses.clients.sdks import MALFORMED, ODD, UNKNOWN, agent, flight, short

CLIENT = agent(
    "openai-agents",
    "responses",
    "openai_agents_agent.py",
    {
        "main": flight("responses", ODD, MALFORMED),
        "unknown": flight("responses", ODD, UNKNOWN, dies=True),
        "responses-streamed": flight("responses-streamed", ODD, MALFORMED),
        "chat": flight("chat", ODD, MALFORMED),
        "chat-streamed": flight("chat-streamed", ODD, MALFORMED),
        "cut-chat": short("chat-streamed")["cut"],
        **short("responses-streamed", cut_dies=True),
    },
    OPENAI_AGENTS_DISABLE_TRACING="1",
)
