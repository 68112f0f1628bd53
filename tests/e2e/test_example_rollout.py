"""The example of rollout code of one's own, as a user runs it: engine, capture, ingest, audit, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.examples.sglang_rollout import ASKED, judge
from tests.support.captured import calls_of, events_of, whole
from tests.support.command import document, headrace
from tests.support.engines import embedded_engine
from tests.support.random_model import make_tiny_model
from tests.support.tiny_model import make_tokenizer

ROOT = Path(__file__).parents[2]
GROUPS, SIZE, TURNS = 3, 4, 3
CONTEXT, ANSWER = 1024, 400  # tokens: the third answer may have less room than it is given


@pytest.fixture
def model(tmp_path):
    """Random weights under a tokenizer that knows ChatML's control tokens."""
    folder = make_tiny_model(tmp_path / "model", vocab=512, sharpness=3.0)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = tokenizer.token_to_id("<|im_end|>")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_a_rollout_without_a_proxy(model, tmp_path):
    run = tmp_path / "runs" / "mine"
    with embedded_engine(model, "--weight-version", "5", "--context-tokens", str(CONTEXT)) as engine:
        command = [
            *(sys.executable, "-m", "ingest.examples.sglang_rollout", "--run", str(run)),
            *("--engine", engine.url, "--model", str(model), "--groups", str(GROUPS), "--size", str(SIZE)),
            *("--turns", str(TURNS), "--tokens-max", str(ANSWER), "--context-tokens", str(CONTEXT)),
        ]
        subprocess.run(command, cwd=ROOT, check=True, timeout=240)
    calls, tools = events_of(run, "calls"), events_of(run, "tools")
    assert len(events_of(run, "groups")) == GROUPS
    executions = sorted({c.execution_id for c in calls})
    assert len(executions) == GROUPS * SIZE
    assert len(tools) == len(calls)
    tokenizer = make_tokenizer()
    for execution in executions:
        own = calls_of(run, execution)
        assert all(c.relation == ("extends" if k else "restarts") for k, c in own.items())
        assert all(c.spans == ((5, 0, c.n_output),) or c.spans[0].version == 5 for c in own.values())
        assert ASKED in tokenizer.decode(whole(own, 0), skip_special_tokens=False)
    assert max(c.call_id for c in calls) > 0  # some went on after a first turn

    document("ingest", str(run), "--once", folder=tmp_path)
    violations = document("audit", str(run), folder=tmp_path)["violations"]
    assert {name: n for name, n in violations.items() if n} == {}
    (groups,) = document("sql", str(run), "select count(*) n from groups", folder=tmp_path)
    assert groups["n"] == GROUPS
    trained = document("sql", str(run), "select execution_id, n_targets from weights", folder=tmp_path)
    sampled = {e: sum(c.n_output for c in calls if c.execution_id == e) for e in executions}
    assert {row["execution_id"]: row["n_targets"] for row in trained} == sampled
    assert "tokens by role" in headrace("report", str(run), folder=tmp_path).stdout


def test_the_tool_judges_guesses():
    assert judge("I say 42.", 42) == ("Right!", 1.0)
    assert judge("7", 57) == ("Higher.", 0.5)
    assert judge("999", 1) == ("Lower.", 0.0)
    assert judge("hm", 1) == ("That is no number.", 0.0)
