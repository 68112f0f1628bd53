"""Claude Code: Anthropic Messages, streamed; sub-agents and compaction are told by header and by last words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place
from tests.harnesses.scenario import (
    SUBTASK,
    TASK,
    Line,
    Script,
    by_words,
    conversation,
    odd_arguments,
)

BINARY = "node_modules/@anthropic-ai/claude-code-linux-x64/claude"


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    flags = ["--output-format", "json", "--dangerously-skip-permissions", "--model", "policy"]
    return [str(place.installed / BINARY), "-p", TASK, *flags]


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
    odd = odd_arguments('"description" : "Odd  JSON"')
    second = '{"timeout":10000.0,"command":"echo second; ls -la","description":"two"}'
    sub = f'{{"prompt":"{SUBTASK}", "description":"sub", "subagent_type":"general-purpose"}}'
    sub_call = ("Bash", '{"command":"echo sub"  , "description":"s"}')
    return Script(
        by_words(summary=("CRITICAL: Respond with TEXT ONLY",)),
        {
            "main": conversation(
                "Bash", odd, second, sub=("Agent", sub), long='{"command":"seq 1 9000","description":"long"}', more='{"command":"echo more","description":"m"}'
            ),
            "sub-agent": [Line("sub", "sub working", "sub thinks", (sub_call,)), Line("sub done", "SUB-RESULT")],
            "main-summary": [Line("summary", "<analysis>an</analysis>\n<summary>SUMMARY</summary>")],
        },
    )


CLIENT = Client("claude-code", "anthropic", command, environment, {"main": Flight(script, ())})
