"""OpenCode: chat completions, always streamed; sub-agents, compaction, and a title writer beside the task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, Told, started, told
from tests.harnesses.scenario import (
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

SWITCHED_OFF = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE")
WHO = by_words(summary=("You are a context summarization agent",), auxiliary=("You are a title generator",))
TITLE = {"auxiliary": [Line("title", "A Title")]}


ROLLOUT = "opencode run --print-logs --log-level WARN {prompt}"
CONFIG = {
    "$schema": "https://opencode.ai/config.json",
    "autoupdate": False,
    "share": "disabled",
    "model": "headrace/policy",
    "small_model": "headrace/policy",
    "permission": {"edit": "allow", "bash": "allow", "webfetch": "allow"},
    "provider": {
        "headrace": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Headrace",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {
                "policy": {
                    "name": "policy",
                    "tool_call": True,
                    "reasoning": True,
                    "limit": {"context": 128_000, "output": 8000},
                }
            },
        }
    },
}
NOTHING_TO_FETCH = {
    ".config/opencode/package-lock.json": json.dumps(
        {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    ),
    ".config/opencode/node_modules/.none": "",
}
"""What it would fetch from npm, and wait for at its end, is there by its own account."""


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    return started(ROLLOUT, place, str(place.installed / "node_modules/opencode-linux-x64/bin/opencode"))


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return told(place) | {f"OPENCODE_DISABLE_{n}": "1" for n in SWITCHED_OFF}


def files(_: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    config = json.loads(json.dumps(CONFIG))
    limit = config["provider"]["headrace"]["models"]["policy"]["limit"]
    limit["context"] = settings.get("context", limit["context"])
    return {".config/opencode/opencode.json": json.dumps(config), **NOTHING_TO_FETCH}


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


MAIN = (
    ("auxiliary", "title", "restarts"),
    ("main", "odd and parallel", "restarts"),
    ("main", "malformed", "extends"),
    ("main", "unknown tool", "extends"),
    ("main", "sub-agent", "extends"),
    ("sub-agent", "sub", "branches"),  # it has the main agent's own system prompt
    ("sub-agent", "sub done", "extends"),
    ("main", "long output 1", "extends"),
    ("main", "more", "extends"),
    ("main-summary", "summary", "restarts"),
    ("main", "done", "branches"),
)


def ended_by(label: str) -> Told:
    """The run ends with the first answer."""
    return (("auxiliary", "title", "restarts"), ("main", label, "restarts"))


CLIENT = Client(
    "opencode",
    command,
    environment,
    {
        "main": Flight(script, MAIN, settings={"context": 35_000}, in_any_order=True),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY, **TITLE}), ended_by("empty"), in_any_order=True),
        "cut": Flight(lambda: Script(WHO, {"main": CUT, **TITLE}), ended_by("cut"), in_any_order=True),
        "failing": Flight(
            lambda: Script(WHO, {"main": FAILING, **TITLE}), ended_by("answer"), in_any_order=True
        ),
    },
    files,
    rollout=ROLLOUT,
    home={".config/opencode/opencode.json": json.dumps(CONFIG, indent=2)},
)
