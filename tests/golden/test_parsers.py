"""Why the parsers are ours: what those of sglang and of renderers did, measured once, beside what ours do.

`parsers.json` holds inputs, what should come of them, and the answers of llm-router-utils 0.8.1 (whose
detectors gave what sglang 0.5.23's own gave; it wants 5.7 GB with torch and triton, 593 MB and 9 s to
import) and of renderers 0.1.12 (its tool parsers take token ids and no schemas).  No one of them keeps
argument bytes: all load JSON and write it again.  sglang's also drop tools that are not offered, drop
malformed calls or all calls beside one, and make calls of what the token limit cut.

Ours also answer the fixtures of canitoolcall, collected from models' templates, engines and bug reports.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from ingest.proxy.parsing import FORMS, parse

GOLDEN = json.loads((Path(__file__).parent / "parsers.json").read_text())
CASES = {f"{c['form']}: {c['case']}": c for c in GOLDEN["cases"]}
# Well formed, and yet no detector of sglang's has the calls: it drops the tool, or ends the value early.
APART = {"hermes: a tool that is not offered", "xml: end tags in a value"}
# What the fixtures want otherwise than capture.md: a malformed call leaves with its raw arguments; text that
# stands between marks is kept; a Mistral model that writes another family's tags.
OTHERWISE = {
    "deepseek/vllm-v3-malformed-missing-brace",
    "kimi/k2i-vllm-noise-between-markers",
    "mistral/vllm-v11-think-text",
}
FAMILIES = {
    "qwen3-hermes": "hermes", "qwen3-xml": "xml", "glm": "glm", "kimi": "kimi", "deepseek": "deepseek",
    "mistral": "mistral", "llama": "llama",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ours(name):
    case = CASES[name]
    parsed = parse(case["text"], tools=GOLDEN["tools"], cut=case["cut"], form=FORMS[case["form"]])
    assert [list(call) for call in parsed.calls] == case["calls"]


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case["well_formed"]))
def test_what_is_well_formed_means_the_same_to_sglang(name):
    case = CASES[name]
    ours = [(n, json.loads(a)) for n, a in case["calls"]]
    theirs = [[(n, json.loads(a)) for n, a in calls] for calls in case["sglang"].values()]
    assert (ours in theirs) == (name not in APART)


def test_none_keeps_argument_bytes():
    """Case 7, and what would have to hold for a library to serve."""
    case = CASES["hermes: arguments byte for byte"]
    assert case["calls"] not in [*case["sglang"].values(), case["renderers"]]


def test_sglang_makes_calls_of_what_the_limit_cut():
    """Case 23: such a call would be run."""
    cut = {name for name, c in CASES.items() if c["cut"] and any(c["sglang"].values())}
    assert cut == {
        "hermes: cut before the end tag",
        "xml: cut in a value",
        "xml: cut in a value that holds an end tag",
    }


def _fixtures():
    for family, form in FAMILIES.items():
        for path in sorted((files("canitoolcall") / "_data" / "fixtures" / family).iterdir(), key=str):
            if path.name.endswith(".jsonl"):
                yield from ((form, json.loads(line)) for line in path.read_text().splitlines())


def _is_ours(fixture):
    """Not DeepSeek's DSML, Kimi K3's tags or Llama 4's Python, which we do not read."""
    name, raw = fixture["id"], fixture["raw_output"]
    return not ("DSML" in raw or "x-kimi-k3" in fixture["tags"] or name.startswith("llama/l4-"))


def _thinking(fixture):
    """Had the prompt opened the block?  Where the fixture does not say: does the output end one unopened?"""
    if fixture.get("generation_prompt"):
        return fixture["generation_prompt"].rstrip().endswith(("<think>", "[THINK]"))
    before = fixture["raw_output"].split("<tool")[0]
    return "<think>" not in before and ("</think>" in before or "in-reasoning" in fixture["id"])


FIXTURES = {f["id"]: (form, f) for form, f in _fixtures() if _is_ours(f)}


@pytest.mark.parametrize("name", FIXTURES)
def test_fixtures(name):
    form, fixture = FIXTURES[name]
    cut = "truncated" in fixture["tags"]
    parsed = parse(
        fixture["raw_output"], tools=fixture["tools"], cut=cut, thinking=_thinking(fixture), form=FORMS[form]
    )
    wanted = fixture.get("expected")
    if wanted is None:
        holds = parsed.calls == ()
    else:
        try:
            calls = [{"name": n, "arguments": json.loads(a)} for n, a in parsed.calls]
        except ValueError:
            calls = []
        text, thought = ((wanted[k] or "").strip() for k in ("content", "reasoning_content"))
        holds = (calls, parsed.text.strip(), (parsed.reasoning or "").strip()) == (
            wanted["tool_calls"],
            text,
            thought,
        )
    assert holds == (name not in OTHERWISE), parsed
