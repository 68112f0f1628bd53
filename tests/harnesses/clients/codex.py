"""Codex: Responses, always streamed; sub-agents and compaction are told by headers."""

from __future__ import annotations

import json
import re
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

BINARY = "node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex"
WHO = by_words(summary=("CONTEXT CHECKPOINT COMPACTION",))
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
    return [str(place.installed / BINARY), "exec", *flags, place.task]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return {"HEADRACE_KEY": place.key, "CODEX_HOME": str(place.home / ".codex")}


def files(place: Place, settings: Mapping[str, Any]) -> dict[str, str]:
    text = CONFIG.format(url=place.url, top=settings.get("top", ""), provider=settings.get("provider", ""))
    return {".codex/config.toml": text}


def wait(prompt: str) -> Line:
    """Wait for the sub-agent whose id the tool said."""
    agent = re.findall(r"agent_id[^0-9a-f]+([0-9a-f-]{36})", prompt)[-1]
    return Line(
        "wait", calls=(("multi_agent_v1__wait_agent", json.dumps({"targets": [agent], "timeout_ms": 20000})),)
    )


def script() -> Script:
    spawn = ("multi_agent_v1__spawn_agent", json.dumps({"message": SUBTASK}))
    lines = conversation(
        "exec_command",
        odd_arguments().replace('"command"', '"cmd"'),
        '{"cmd":"echo second; ls -la"}',
        malformed='{"cmd": "echo bad", }',
        sub=[Line("sub-agent", "", "I delegate.", (spawn,)), wait],
        long=['{"cmd":"seq 1 9000"}'],
        more='{"cmd":"echo more"}',
    )
    sub_call = ("exec_command", '{"cmd":"echo sub"  }')
    sub_lines = [Line("sub", "sub working", "sub thinks", (sub_call,)), Line("sub done", "SUB-RESULT")]
    summary = [Line("summary", "SUMMARY", "I sum up.")]
    return Script(WHO, {"main": lines, "sub-agent": sub_lines, "main-summary": summary})


CLIENT = Client(
    "codex",
    "responses",
    command,
    environment,
    {
        "main": Flight(
            script, (), settings={"top": "model_auto_compact_token_limit = 33000"}, in_any_order=True
        ),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY}), ()),
        "cut": Flight(lambda: Script(WHO, {"main": CUT}), (), exit=1),
    },
    files,
)
