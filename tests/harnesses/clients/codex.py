"""Codex: Responses, always streamed; sub-agents and compaction are told by headers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.harnesses.frame import Client, Flight, Place, started, told
from tests.harnesses.scenario import (
    ANSWERED,
    CUT,
    EMPTY,
    FAILING,
    SLOW_S,
    SUBTASK,
    Line,
    Script,
    by_words,
    conversation,
    odd_arguments,
    slow,
)

BINARY = "node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex"
WHO = by_words(summary=("CONTEXT CHECKPOINT COMPACTION",))
ROLLOUT = (
    "codex exec --skip-git-repo-check --json --dangerously-bypass-approvals-and-sandbox -m {model} "
    "-c model_provider=headrace -c model_providers.headrace.name=headrace "
    "-c model_providers.headrace.base_url={base_url}/v1 -c model_providers.headrace.env_key=OPENAI_API_KEY "
    "-c model_providers.headrace.wire_api=responses {prompt}"
)


def command(place: Place, settings: Mapping[str, Any]) -> list[str]:
    *words, prompt = started(ROLLOUT, place, str(place.installed / BINARY))
    return [*words, *(w for s in settings.get("config", ()) for w in ("-c", s)), prompt]


def environment(place: Place, _: Mapping[str, Any]) -> dict[str, str]:
    return told(place)


def files(*_: Any) -> dict[str, str]:
    """What it would ask of its maker is switched off."""
    return {".codex/config.toml": "check_for_update_on_startup = false\n[analytics]\nenabled = false\n"}


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


MAIN = (
    ("main", "odd and parallel", "restarts"),
    ("main", "malformed", "extends"),
    ("main", "unknown tool", "extends"),
    ("main", "sub-agent", "extends"),
    ("main", "wait", "extends"),
    ("sub-agent", "sub", "branches"),  # it has the main agent's own instructions
    ("sub-agent", "sub done", "extends"),
    ("main", "long output 1", "extends"),
    ("main", "more", "extends"),
    ("main-summary", "summary", "branches"),  # without tools
    ("main", "done", "branches"),
)

CLIENT = Client(
    "codex",
    command,
    environment,
    {
        "main": Flight(
            script, MAIN, settings={"config": ["model_auto_compact_token_limit=33000"]}, in_any_order=True
        ),
        "empty": Flight(lambda: Script(WHO, {"main": EMPTY}), (("main", "empty", "restarts"),)),
        "cut": Flight(lambda: Script(WHO, {"main": CUT}), (("main", "cut", "restarts"),), exit=1),
        "failing": Flight(lambda: Script(WHO, {"main": FAILING}), ANSWERED),
        "slow": Flight(
            lambda: Script(WHO, {"main": slow(9.0)}),
            ANSWERED,
            settings={"config": ["model_providers.headrace.stream_idle_timeout_ms=4000"]},
        ),
        "ten-minutes": Flight(
            lambda: Script(WHO, {"main": slow(SLOW_S)}), ANSWERED, settings={"seconds_max": SLOW_S + 120}
        ),
    },
    files,
    rollout=ROLLOUT,
)
