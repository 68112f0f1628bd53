"""openai-agents: responses and chat completions, streamed and not.

A tool that it does not know ends its run, and so does a streamed response that the token limit cut.
"""

from __future__ import annotations

from tests.harnesses.clients.sdks import MALFORMED, ODD, UNKNOWN, agent, flight, short
from tests.harnesses.frame import Flight
from tests.harnesses.scenario import DONE, SUBTASK, Line, Script, by_words

WHO = by_words()
DELEGATE = Line("sub-agent", "", "I delegate.", (("delegate", f'{{"input": "{SUBTASK}"}}'),))
SUB = Line("sub", "sub working", calls=(("bash", '{"command":"echo sub"}'),))


def delegating() -> Script:
    return Script(WHO, {"main": [DELEGATE, DONE], "sub-agent": [SUB, Line("sub done", "SUB-RESULT")]})


DELEGATING = (
    ("main", "sub-agent", "restarts"),
    ("sub-agent", "sub", "restarts"),
    ("sub-agent", "sub done", "extends"),
    ("main", "done", "extends"),
)

CLIENT = agent(
    "openai-agents",
    "openai_agents_agent.py",
    {
        "main": flight("responses", ODD, MALFORMED),
        "unknown": flight("responses", ODD, UNKNOWN, dies=True),
        "responses-streamed": flight("responses-streamed", ODD, MALFORMED),
        "chat": flight("chat", ODD, MALFORMED),
        "chat-streamed": flight("chat-streamed", ODD, MALFORMED),
        "delegating": Flight(delegating, DELEGATING, settings={"how": "delegating"}),
        "cut-chat": short("chat-streamed")["cut"],
        **short("responses-streamed", cut_dies=True),
    },
    OPENAI_AGENTS_DISABLE_TRACING="1",
)
