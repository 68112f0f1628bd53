"""OpenHands SDK: chat completions, not streamed; its own agent with terminal and editor; one role."""

from __future__ import annotations

from tests.harnesses.clients.sdks import agent, script, story
from tests.harnesses.frame import Flight
from tests.harnesses.scenario import CUT, EMPTY, FAILING, Line, Script, by_words, conversation, odd_arguments

OWN = '"security_risk":"LOW", "summary" : "s"'
END = Line("finish", "done", calls=(("finish", '{"message":"FINAL"}'),))
LINES = (
    *conversation(
        "terminal",
        odd_arguments(OWN, large=False),
        '{"command":"echo second; ls -la","security_risk":"LOW","summary":"x"}',
    )[:-1],
    END,
)

WHO = by_words(summary=("You are maintaining a context-aware state summary",))
ROUND = '{{"command":"echo MAIN-TASK summary: {}","security_risk":"LOW","summary":"x"}}'
ROUNDS = [Line(f"round {k}", calls=(("terminal", ROUND.format(k)),)) for k in range(1, 7)]


def condensed() -> Script:
    return Script(WHO, {"main": [*ROUNDS, END], "main-summary": [Line("summary", "SUMMARY")]})


CONDENSED = (
    ("main", "round 1", "restarts"),
    *(("main", f"round {k}", "extends") for k in range(2, 5)),
    ("main-summary", "summary", "restarts"),
    ("main", "round 5", "branches"),
    ("main", "round 6", "extends"),
    ("main", "finish", "extends"),
)
HOW = {"how": "chat"}
MAIN = story("odd and parallel", "malformed", "unknown tool", "finish")

CLIENT = agent(
    "openhands",
    "openhands_agent.py",
    {
        "main": Flight(script(*LINES), MAIN, settings=HOW),
        "empty": Flight(script(EMPTY[0], END), story("empty", "finish"), settings=HOW),
        "cut": Flight(script(CUT[0], END), story("cut"), settings=HOW),
        "summary": Flight(condensed, CONDENSED, settings={"how": "condensed"}),
        "failing": Flight(script(*FAILING), story("answer"), settings=HOW),
    },
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENHANDS_SUPPRESS_BANNER="1",
    DO_NOT_TRACK="1",
    POSTHOG_DISABLED="1",
)
