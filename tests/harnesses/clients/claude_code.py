"""Claude Code: Anthropic Messages, streamed; sub-agents are told by a header, summaries by their last words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place
from tests.harnesses.scenario import (
    CUT,
    EMPTY,
    SUBTASK,
    Line,
    Script,
    by_words,
    conversation,
    odd_arguments,
)

BINARY = "node_modules/@anthropic-ai/claude-code-linux-x64/claude"
WHO = by_words(summary=("CRITICAL: Respond with TEXT ONLY",))
COMPACTION = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "25"}


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    flags = ["--output-format", "json", "--dangerously-skip-permissions", "--model", "policy"]
    return [str(place.installed / BINARY), "-p", place.task, *flags]


def environment(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": place.key,
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **settings.get("environment", {}),
    }


def script() -> Script:
    sub = f'{{"prompt":"{SUBTASK}", "description":"sub", "subagent_type":"general-purpose","run_in_background":false}}'
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


CLIENT = Client(
    "claude-code",
    "anthropic",
    command,
    environment,
    {
        "main": Flight(script, (), settings={"environment": COMPACTION}),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY}), ()),
        "cut": Flight(lambda: Script(WHO, {"main": CUT}), ()),
    },
)
