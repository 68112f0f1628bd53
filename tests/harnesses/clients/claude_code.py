"""Claude Code: Anthropic Messages, streamed; a sub-agent is told by a header, a summary by its last words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, started, told
from tests.harnesses.scenario import (
    ANSWERED,
    CUT,
    EMPTY,
    FAILING,
    SLOW_S,
    SUBTASK,
    Line,
    Script,
    by_words,
    conversation,
    odd_arguments,
    slow,
)

BINARY = "node_modules/@anthropic-ai/claude-code-linux-x64/claude"
WHO = by_words(summary=("CRITICAL: Respond with TEXT ONLY",))
ROLLOUT = "claude -p {prompt} --output-format json --dangerously-skip-permissions"
COMPACTION = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "25"}


def command(place: Place, settings: Mapping[str, Any]) -> list[str]:
    place = replace(place, task=settings.get("prompt", place.task))
    return started(ROLLOUT, place, str(place.installed / BINARY))


def environment(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    return {
        **told(place),
        "IS_SANDBOX": "1",  # it asks for this word where it runs as root
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **settings.get("environment", {}),
    }


def script() -> Script:
    sub = (
        f'{{"prompt":"{SUBTASK}", "description":"sub", "subagent_type":"general-purpose",'
        '"run_in_background":false}'
    )
    lines = conversation(
        "Bash",
        odd_arguments('"description" : "Odd  JSON"', large=False),
        '{"timeout":10000.0,"command":"echo second; ls -la","description":"two"}',
        sub=[Line("sub-agent", "", "I delegate.", (("Agent", sub),))],
        long=['{"command":"seq 1 1500","description":"long"}'] * 2,
        more='{"command":"echo more","description":"more"}',
    )
    sub_call = ("Bash", '{"command":"echo sub"  , "description":"s"}')
    sub_lines = [Line("sub", "sub working", "sub thinks", (sub_call,)), Line("sub done", "SUB-RESULT")]
    summary = [Line("summary", "<analysis>an</analysis>\n<summary>MAIN-TASK</summary>", "I sum up.")]
    return Script(WHO, {"main": lines, "sub-agent": sub_lines, "main-summary": summary})


MAIN = (
    ("main", "odd and parallel", "restarts"),
    ("main", "malformed", "extends"),
    ("main", "unknown tool", "extends"),
    ("main", "sub-agent", "extends"),
    ("sub-agent", "sub", "restarts"),
    ("sub-agent", "sub done", "extends"),
    ("main", "long output 1", "extends"),
    ("main", "long output 2", "extends"),
    ("main", "more", "extends"),
    ("main-summary", "summary", "branches"),  # without the last answer, which stays in the conversation
    ("main", "done", "branches"),
)
EMPTY_TOLD = (("main", "empty", "restarts"), ("main", "done", "branches"))
CUT_TOLD = (("main", "cut", "restarts"), ("main", "done", "extends"))

CLIENT = Client(
    "claude-code",
    command,
    environment,
    {
        "main": Flight(script, MAIN, settings={"environment": COMPACTION}),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY}), EMPTY_TOLD),
        "cut": Flight(lambda: Script(WHO, {"main": CUT}), CUT_TOLD),
        "counting": Flight(
            lambda: Script(WHO, {"main": []}),
            (),
            settings={
                "prompt": "/context",
                "environment": {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": ""},
            },
        ),
        "failing": Flight(lambda: Script(WHO, {"main": FAILING}), ANSWERED),
        "slow": Flight(
            lambda: Script(WHO, {"main": slow(14.0)}),
            ANSWERED,
            settings={"environment": {"CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": "10000"}},
        ),
        "ten-minutes": Flight(
            lambda: Script(WHO, {"main": slow(SLOW_S)}), ANSWERED, settings={"seconds_max": SLOW_S + 120}
        ),
    },
    rollout=ROLLOUT,
)
