"""Command lines, environments and scores: what is said where something cannot be."""

from __future__ import annotations

import pytest

from ingest.rollouts.command_line import (
    HARNESS_NAMES,
    SCORER_NAMES,
    BadCommand,
    CommandLine,
    NoScore,
    check_environment,
    harness_environment,
    last_lines,
    score_of,
    scorer_environment,
)

VALUES = dict.fromkeys(HARNESS_NAMES, "") | {
    "prompt": 'Fix "it"\n{task} $HOME; rm -rf / \u4f60',
    "base_url": "http://127.0.0.1:1/x/g.0",
    "api_key": "hr-key",
    "model": "m",
    "execution": "g.0",
    "task": "/t.json",
    "workspace": "/w",
    "output": "/o.log",
}
OURS = {
    "PATH": "/bin", "HOME": "/root", "OPENAI_API_KEY": "real", "ANTHROPIC_API_KEY": "real", "CLAUDECODE": "1",
    "CODEX_HOME": "/x", "AWS_SECRET_ACCESS_KEY": "s", "KAFKA_SASL_PASSWORD": "s", "HEADRACE_ENGINE_KEY": "s",
    "XDG_CONFIG_HOME": "/c", "MINE": "1", "no_proxy": "a.b",
}  # fmt: skip


def parsed(text: str) -> CommandLine:
    return CommandLine.parse(text, HARNESS_NAMES, "--harness")


def test_a_prompt_is_one_argument_and_is_not_looked_into() -> None:
    assert parsed("claude -p {prompt} --model={model}").fill(VALUES) == [
        "claude", "-p", VALUES["prompt"], "--model=m",
    ]  # fmt: skip


def test_braces_that_are_no_placeholder_are_text() -> None:
    line = parsed("""x '{"mcp": {"a": {}}}' ${HOME} {{prompt}} '{ print $1 }'""")
    assert line.fill(VALUES) == ["x", '{"mcp": {"a": {}}}', "${HOME}", "{prompt}", "{ print $1 }"]
    assert not line.uses("prompt")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--harness is empty"),
        ("  ", "--harness is empty"),
        ("''", "--harness is empty"),
        ("claude -p {promt}", r"unknown placeholder \{promt\}; known: \{prompt\}.*write \{\{promt\}\}"),
        ("claude -p 'it", "No closing quotation"),
        ("claude \0", "NUL"),
    ],
)
def test_a_line_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadCommand, match=said):
        parsed(text)


def test_a_scorer_gets_neither_address_nor_key() -> None:
    with pytest.raises(BadCommand, match=r"unknown placeholder \{base_url\}"):
        CommandLine.parse("score {base_url}", SCORER_NAMES, "--scorer")
    found = scorer_environment(OURS, VALUES, "harness_timeout", None)
    assert found["OPENAI_API_KEY"] == "real"  # a judge of the user's own
    assert "HEADRACE_ENGINE_KEY" not in found
    assert (found["HEADRACE_STATUS"], found["HEADRACE_EXIT_CODE"]) == ("harness_timeout", "")
    assert (found["HEADRACE_TASK"], found["HEADRACE_OUTPUT"]) == ("/t.json", "/o.log")


def test_a_nul_in_a_value_is_refused_where_it_is_used() -> None:
    with pytest.raises(BadCommand, match="NUL"):
        parsed("x {prompt}").fill(VALUES | {"prompt": "a\0b"})
    assert parsed("x {task}").fill(VALUES | {"prompt": "a\0b"}) == ["x", "/t.json"]


def test_the_environment_speaks_all_three_dialects_and_holds_no_key_of_ours() -> None:
    found = harness_environment(OURS, VALUES, ["A={model}-{{model}}", "CODEX_HOME", "NOWHERE"], "/h")
    assert found["OPENAI_BASE_URL"] == found["OPENAI_API_BASE"] == "http://127.0.0.1:1/x/g.0/v1"
    assert found["ANTHROPIC_BASE_URL"] == found["HEADRACE_BASE_URL"] == "http://127.0.0.1:1/x/g.0"
    keys = ("OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN", "HEADRACE_API_KEY")
    assert {found[k] for k in keys} == {"hr-key"}
    assert (found["OPENAI_MODEL"], found["ANTHROPIC_MODEL"], found["HEADRACE_EXECUTION"]) == ("m", "m", "g.0")
    assert (found["PATH"], found["MINE"], found["HOME"]) == ("/bin", "1", "/h")
    assert (found["A"], found["CODEX_HOME"]) == ("m-{model}", "/x")  # what is named is passed on
    assert found["no_proxy"] == "a.b,127.0.0.1,localhost,::1"
    gone = {"CLAUDECODE", "AWS_SECRET_ACCESS_KEY", "KAFKA_SASL_PASSWORD", "HEADRACE_ENGINE_KEY", "NOWHERE"}
    assert not (gone | {"XDG_CONFIG_HOME"}) & found.keys()
    shared = harness_environment(OURS, VALUES)
    assert (shared["HOME"], shared["XDG_CONFIG_HOME"]) == ("/root", "/c")


@pytest.mark.parametrize("entry", ["", "=1", "1A=2", "A B=1", "A={nothing}"])
def test_an_environment_that_cannot_be_is_refused(entry: str) -> None:
    with pytest.raises(BadCommand, match=r"rollout\.environment"):
        check_environment([entry])


@pytest.mark.parametrize(
    ("printed", "value", "detail"),
    [
        ("0", 0.0, ""),
        ("tests: 3 of 4\n0.75\n\n", 0.75, ""),
        ("-1e-3", -0.001, ""),
        (".5", 0.5, ""),
        ("+2.", 2.0, ""),
        ('{"score": 1}', 1.0, ""),
        ('{"score": 0, "detail": "no tests", "more": 1}', 0.0, "no tests"),
        ('{"detail": {"a": [1]}, "score": 0.5}', 0.5, '{"a":[1]}'),
    ],
)
def test_scores(printed: str, value: float, detail: str) -> None:
    assert score_of(printed) == (value, detail)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", "printed nothing"),
        ("\n \n", "printed nothing"),
        ("1\ndone", "last line is 'done'"),
        ("nan", "last line is 'nan'"),
        ("inf", "last line is 'inf'"),
        ("1e999", "a finite number"),
        ('{"score": 1e999}', "number"),
        ("1_000", "last line is '1_000'"),
        ("\u0661", "last line is"),
        ("true", "last line is 'true'"),
        ('{"score": true}', "last line is"),
        ('{"score": "1"}', "last line is"),
        ('{"detail": "x"}', "last line is"),
        ('{"score": null, "detail": "no network"}', "gave no score: no network"),
        ("[1]", "last line is"),
    ],
)
def test_what_is_no_score(printed: str, said: str) -> None:
    with pytest.raises(NoScore, match=said):
        score_of(printed)


def test_the_last_lines() -> None:
    assert last_lines("\n".join(map(str, range(9))) + "\n\n", 2) == "7\n8"
    assert last_lines("x" * 5000) == "x" * 1000
