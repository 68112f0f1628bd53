"""OpenHands SDK: chat completions, not streamed; its own agent with terminal and editor; one role."""

from __future__ import annotations

from tests.harnesses.clients.sdks import agent, script, story
from tests.harnesses.frame import Flight
from tests.harnesses.scenario import CUT, EMPTY, FAILING, Line, conversation, odd_arguments

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

HOW = {"how": "chat"}
MAIN = story("odd and parallel", "malformed", "unknown tool", "finish")

CLIENT = agent(
    "openhands",
    "chat",
    "openhands_agent.py",
    {
        "main": Flight(script(*LINES), MAIN, settings=HOW),
        "empty": Flight(script(EMPTY[0], END), story("empty", "finish"), settings=HOW),
        "cut": Flight(script(CUT[0], END), story("cut"), settings=HOW),
        "failing": Flight(script(*FAILING), story("answer"), settings=HOW),
    },
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENHANDS_SUPPRESS_BANNER="1",
    DO_NOT_TRACK="1",
    POSTHOG_DISABLED="1",
)
