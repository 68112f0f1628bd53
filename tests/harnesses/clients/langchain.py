"""LangChain: its agent on chat completions, responses and Anthropic messages, streamed and not.

A call with malformed arguments is no call to it: the agent takes the turn for its answer, and ends.
"""

from __future__ import annotations

from tests.harnesses.clients.sdks import MALFORMED, ODD, UNKNOWN, WHOLE, agent, flight, short
from tests.harnesses.frame import Flight
from tests.harnesses.scenario import DONE, Line, Script, by_words

WHO = by_words(summary=("Context Extraction Assistant",))
ROUND = Line("round", calls=(("bash", '{"command":"echo round"}'),))


def summarised() -> Script:
    return Script(WHO, {"main": [ROUND, ROUND, ROUND, DONE], "main-summary": [Line("summary", "SUMMARY")]})


SUMMARISED = (
    ("main", "round", "restarts"),
    ("main", "round", "extends"),
    ("main", "round", "extends"),
    ("main-summary", "summary", "restarts"),
    ("main", "done", "branches"),
)

CLIENT = agent(
    "langchain",
    "langchain_agent.py",
    {
        "main": flight("chat", ODD, UNKNOWN),
        "malformed": flight("chat", ODD, MALFORMED, ends=True),
        "chat-streamed": flight("chat-streamed", ODD, UNKNOWN),
        "responses": flight("responses", ODD, UNKNOWN),
        "responses-streamed": flight("responses-streamed", ODD, UNKNOWN),
        "anthropic": flight("anthropic", *WHOLE),
        "anthropic-streamed": flight("anthropic-streamed", ODD, UNKNOWN),
        "summary": Flight(summarised, SUMMARISED, settings={"how": "summarised"}),
        **short("chat-streamed"),
    },
    LANGSMITH_TRACING="false",
)
