"""pi: chat completions, always streamed; one role, and a summary of its own shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place
from tests.harnesses.scenario import (
    DONE,
    MALFORMED,
    TASK,
    TEXT,
    THOUGHT,
    UNKNOWN,
    Line,
    Script,
    by_words,
    odd_arguments,
)

CLI = "node_modules/@mariozechner/pi-coding-agent/dist/cli.js"


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    cli = str(place.installed / CLI)
    return ["node", cli, "--provider", "headrace", "--model", "policy", "-p", TASK]


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
    return {".pi/agent/models.json": json.dumps({"providers": {"headrace": provider}})}


def script() -> Script:
    lines = [
        Line(
            "odd and parallel",
            TEXT,
            THOUGHT,
            (("bash", odd_arguments('"timeout" : 5.0')), ("bash", '{"command":"echo second; ls -la"}')),
        ),
        Line("malformed", "bad", calls=(("bash", MALFORMED),)),
        Line("unknown tool", "unknown", calls=(UNKNOWN,)),
        DONE,
    ]
    return Script(
        by_words(summary=("summar",)), {"main": lines, "main-summary": [Line("summary", "## Goal\nSUMMARY")]}
    )


CLIENT = Client(
    "pi",
    "chat",
    command,
    environment,
    {
        "main": Flight(
            script,
            (
                ("main", "odd and parallel", "restarts"),
                ("main", "malformed", "extends"),
                ("main", "unknown tool", "extends"),
                ("main", "done", "extends"),
            ),
        )
    },
    files,
)
