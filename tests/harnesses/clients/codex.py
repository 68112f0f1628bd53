"""Codex: Responses, always streamed; sub-agents and compaction are told by headers."""

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

BINARY = "node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex"
CONFIG = """\
model = "policy"
model_provider = "headrace"
check_for_update_on_startup = false
{top}
[analytics]
enabled = false
[otel]
exporter = "none"
[model_providers.headrace]
name = "headrace"
base_url = "{url}/v1"
env_key = "HEADRACE_KEY"
wire_api = "responses"
{provider}
"""


def command(place: Place, _: Mapping[str, Any]) -> list[str]:
    flags = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
    return [str(place.installed / BINARY), "exec", *flags, TASK]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return {"HEADRACE_KEY": place.key, "CODEX_HOME": str(place.home / ".codex")}


def files(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    text = CONFIG.format(url=place.url, top=settings.get("top", ""), provider=settings.get("provider", ""))
    return {".codex/config.toml": text}


def script() -> Script:
    odd = odd_arguments()
    return Script(
        by_words(summary=("CONTEXT CHECKPOINT COMPACTION",)),
        {
            "main": conversation(
                "exec_command", odd.replace('"command"', '"cmd"'), '{"cmd":"echo second; ls -la"}', malformed='{"cmd": "echo bad", }', long='{"cmd":"seq 1 9000"}', more='{"cmd":"echo more"}'
            ),
            "main-summary": [Line("summary", "SUMMARY")],
        },
    )


CLIENT = Client("codex", "responses", command, environment, {"main": Flight(script, ())}, files)
