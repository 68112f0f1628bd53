"""pi: chat completions, always streamed; one role, and a summariser that is seen by its system prompt.

It compacts between two prompts of its user, not within one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place
from tests.harnesses.scenario import CUT, EMPTY, Line, Script, by_words, conversation, odd_arguments

CLI = "node_modules/@mariozechner/pi-coding-agent/dist/cli.js"
WHO = by_words(summary=("You are a context summarization assistant",))
SUMMARY = [Line("summary", "## Goal\nSUMMARY")]


def command(place: Place, settings: Mapping[str, Any]) -> list[str]:
    cli = str(place.installed / CLI)
    return [
        "node",
        cli,
        "--provider",
        "headrace",
        "--model",
        "policy",
        "-p",
        place.task,
        *settings.get("then", ()),
    ]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return {"HEADRACE_KEY": place.key, "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}


def files(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    model = {
        "id": "policy",
        "name": "policy",
        "reasoning": True,
        "input": ["text"],
        "contextWindow": settings.get("context", 1_000_000),
        "maxTokens": 8000,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": f"{place.url}/v1",
        "apiKey": "HEADRACE_KEY",
        "api": "openai-completions",
        "models": [model],
    }
    compaction = {"enabled": True, "reserveTokens": 4000, "keepRecentTokens": 1000}
    return {
        ".pi/agent/models.json": json.dumps({"providers": {"headrace": provider}}),
        ".pi/agent/settings.json": json.dumps({"compaction": compaction}),
    }


def script() -> Script:
    lines = conversation(
        "bash",
        odd_arguments('"timeout" : 5.0'),
        '{"command":"echo second; ls -la"}',
        long=['{"command":"seq 1 3000"}'],
        more='{"command":"echo more"}',
    )
    return Script(WHO, {"main": lines, "main-summary": SUMMARY})


CLIENT = Client(
    "pi",
    "chat",
    command,
    environment,
    {
        "main": Flight(script, (), settings={"context": 12_000, "then": ["Go on."]}),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY}), ()),
        "cut": Flight(lambda: Script(WHO, {"main": CUT}), ()),
    },
    files,
)
