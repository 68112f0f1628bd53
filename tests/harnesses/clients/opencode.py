"""OpenCode: chat completions, always streamed; sub-agents, compaction, and a title writer beside the task."""

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

SWITCHED_OFF = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE")
WHO = by_words(summary=("You are a context summarization agent",), auxiliary=("You are a title generator",))
TITLE = {"auxiliary": [Line("title", "A Title")]}


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    binary = str(place.installed / "node_modules/opencode-linux-x64/bin/opencode")
    return [binary, "run", "--print-logs", "--log-level", "WARN", place.task]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    """It looks for a plug-in at npm in the background, and waits for that at its end: one try is enough."""
    return {f"OPENCODE_DISABLE_{n}": "1" for n in SWITCHED_OFF} | {"npm_config_fetch_retries": "0"}


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
    sub = f'{{"prompt":"{SUBTASK}", "description":"do sub", "subagent_type":"general"}}'
    lines = conversation(
        "bash",
        odd_arguments('"description" : "Odd  JSON"'),
        '{"timeout":10000.0,"command":"echo second; ls -la","description":"two"}',
        sub=[Line("sub-agent", "", "I delegate.", (("task", sub),))],
        long=['{"command":"seq 1 1900","description":"long"}'],
        more='{"command":"echo more","description":"more"}',
    )
    sub_call = ("bash", '{"command":"echo sub"  , "description":"s"}')
    sub_lines = [Line("sub", "sub working", "sub thinks", (sub_call,)), Line("sub done", "SUB-RESULT")]
    summary = [Line("summary", "SUMMARY")]
    return Script(WHO, {"main": lines, "sub-agent": sub_lines, "main-summary": summary, **TITLE})


CLIENT = Client(
    "opencode",
    "chat",
    command,
    environment,
    {
        "main": Flight(script, (), settings={"context": 35_000}, in_any_order=True),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY, **TITLE}), (), in_any_order=True),
        "cut": Flight(lambda: Script(WHO, {"main": CUT, **TITLE}), (), in_any_order=True),
    },
    files,
)
