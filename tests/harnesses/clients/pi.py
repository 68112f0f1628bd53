"""pi: chat completions, always streamed; one role, and a summariser that is seen by its system prompt.

It compacts between two prompts of its user, not within one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, started, told
from tests.harnesses.scenario import (
    ANSWERED,
    CUT,
    EMPTY,
    FAILING,
    Line,
    Script,
    by_words,
    conversation,
    odd_arguments,
)

CLI = "node_modules/@mariozechner/pi-coding-agent/dist/cli.js"
WHO = by_words(summary=("You are a context summarization assistant",))
SUMMARY = [Line("summary", "## Goal\nSUMMARY")]


ROLLOUT = "pi --provider headrace --model {model} -p {prompt}"
EXTENSION = """\
export default function (pi) {
  pi.registerProvider("headrace", {
    baseUrl: process.env.OPENAI_BASE_URL,
    apiKey: "OPENAI_API_KEY",
    api: "openai-completions",
    models: [
      {
        id: process.env.OPENAI_MODEL,
        name: "policy",
        reasoning: true,
        input: ["text"],
        contextWindow: 128000,
        maxTokens: 8000,
        cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
      },
    ],
  });
}
"""
AT = ".pi/agent/extensions/headrace.js"


def command(place: Place, settings: Mapping[str, Any]) -> list[str]:
    return started(ROLLOUT, place, "node", str(place.installed / CLI)) + list(settings.get("then", ()))


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return told(place) | {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}


def files(_: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    compaction = {"enabled": True, "reserveTokens": 4000, "keepRecentTokens": 1000}
    context = settings.get("context", 128000)
    return {
        AT: EXTENSION.replace("contextWindow: 128000", f"contextWindow: {context}"),
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


MAIN = (
    ("main", "odd and parallel", "restarts"),
    ("main", "malformed", "extends"),
    ("main", "unknown tool", "extends"),
    ("main", "long output 1", "extends"),
    ("main", "more", "extends"),
    ("main", "done", "extends"),
    ("main-summary", "summary", "restarts"),
    ("main", "done", "branches"),
)

CLIENT = Client(
    "pi",
    command,
    environment,
    {
        "main": Flight(script, MAIN, settings={"context": 12_000, "then": ["Go on."]}),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY}), (("main", "empty", "restarts"),)),
        "cut": Flight(lambda: Script(WHO, {"main": CUT}), (("main", "cut", "restarts"),)),
        "failing": Flight(lambda: Script(WHO, {"main": FAILING}), ANSWERED),
    },
    files,
    rollout=ROLLOUT,
    home={AT: EXTENSION},
)
