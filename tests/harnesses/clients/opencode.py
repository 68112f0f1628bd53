"""OpenCode: chat completions, always streamed; sub-agents, compaction, and a title writer beside the task."""

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
    binary = str(place.installed / "node_modules/opencode-linux-x64/bin/opencode")
    return [binary, "run", "--print-logs", "--log-level", "WARN", TASK]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    names = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE")
    return {f"OPENCODE_DISABLE_{n}": "1" for n in names}


def files(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    limit = {"context": settings.get("context", 1_000_000), "output": 8000}
    model = {"name": "policy", "tool_call": True, "reasoning": True, "limit": limit}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Headrace",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": place.key},
        "models": {"policy": model},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": "headrace/policy",
        "small_model": "headrace/policy",
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "allow"},
        "provider": {"headrace": provider},
    }
    return {"project/opencode.json": json.dumps(config)}


def script() -> Script:
    odd = odd_arguments('"description" : "Odd  JSON"')
    second = '{"timeout":10000.0,"command":"echo second; ls -la","description":"two"}'
    sub = f'{{"prompt":"{SUBTASK}", "description":"do sub", "subagent_type":"general"}}'
    lines = [
        Line("odd and parallel", TEXT, THOUGHT, (("bash", odd), ("bash", second))),
        Line("malformed", "bad", calls=(("bash", MALFORMED),)),
        Line("unknown tool", "unknown", calls=(UNKNOWN,)),
        Line("sub-agent", "", "t2", (("task", sub),)),
        DONE,
    ]
    sub_lines = [
        Line("sub", "sub working", "sub thinks", (("bash", '{"command":"echo sub"  , "description":"s"}'),)),
        Line("sub done", "SUB-RESULT"),
    ]
    return Script(
        by_words(summary=("anchored summary",), auxiliary=("You are a title generator",)),
        {
            "main": lines,
            "sub-agent": sub_lines,
            "main-summary": [Line("summary", "SUMMARY")],
            "auxiliary": [Line("title", "A Title")],
        },
    )


CLIENT = Client("opencode", "chat", command, environment, {"main": Flight(script, ())}, files)
