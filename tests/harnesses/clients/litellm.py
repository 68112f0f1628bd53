"""LiteLLM: chat completions and Anthropic messages, streamed and not.

On streamed Anthropic messages it does not survive malformed arguments: it fails to read its own history.
"""

from __future__ import annotations

from tests.harnesses.clients.sdks import MALFORMED, ODD, UNKNOWN, WHOLE, agent, flight, short

CLIENT = agent(
    "litellm",
    "litellm_agent.py",
    {
        "main": flight("openai", *WHOLE),
        "openai-streamed": flight("openai-streamed", *WHOLE),
        "anthropic": flight("anthropic", *WHOLE),
        "anthropic-streamed": flight("anthropic-streamed", ODD, UNKNOWN),
        "malformed": flight("anthropic-streamed", ODD, MALFORMED, dies=True),
        **short("openai-streamed"),
    },
    LITELLM_LOCAL_MODEL_COST_MAP="True",
)
