"""Whatever a prompt holds, it stays one argument and arrives as it is; any template is a line or refused."""

from __future__ import annotations

import json
import math
import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.rollouts.command_line import HARNESS_NAMES, BadCommand, CommandLine, NoScore, score_of
from ingest.rollouts.tasks import BadTask, parse_task

VALUES = st.fixed_dictionaries(
    {name: st.text(st.characters(exclude_characters="\0")) for name in HARNESS_NAMES}
)
PIECES = st.one_of(
    st.sampled_from([f"{{{n}}}" for n in HARNESS_NAMES]),
    st.text(string.ascii_letters + string.digits + " \"'\\$`;|&<>*-=:/\n", max_size=6),
    st.sampled_from(["{{prompt}}", '{"a": 1}', "${HOME}", "{}", "}", "{"]),
)


def literally(piece: str, values: dict[str, str]) -> str:
    """What a piece becomes, said another way than the code does it."""
    name = piece[1:-1]
    if piece == "{{prompt}}":
        return "{prompt}"
    return values[name] if piece.startswith("{") and name in values else piece


@given(st.lists(st.lists(PIECES, min_size=1, max_size=4), min_size=1, max_size=5), VALUES)
def test_each_word_becomes_one_argument(words: list[list[str]], values: dict[str, str]) -> None:
    joined = ["".join(word) for word in words]
    if not joined[0] or any(piece in {"{", "}", "{}"} for word in words for piece in word):
        return  # such pieces may make or break a placeholder with their neighbours
    line = CommandLine.parse(shlex.join(joined), HARNESS_NAMES, "--harness")
    assert line.fill(values) == ["".join(literally(p, values) for p in word) for word in words]


@given(st.text())
def test_any_text_is_a_command_line_or_is_refused(text: str) -> None:
    try:
        line = CommandLine.parse(text, HARNESS_NAMES, "--harness")
    except BadCommand:
        return
    assert len(line.fill(dict.fromkeys(HARNESS_NAMES, "{prompt}"))) == len(line.words)


@given(st.text())
def test_any_output_is_a_score_or_none(text: str) -> None:
    try:
        value, detail = score_of(text)
    except NoScore:
        return
    assert math.isfinite(value)
    assert isinstance(detail, str)


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(), st.text(st.characters(categories=["L"])))
def test_a_score_comes_back_as_it_was_printed(value: float, detail: str, before: str) -> None:
    assert score_of(f"{before}\n{value!r}\n\n") == (value, "")
    assert score_of(f"{before}\n" + json.dumps({"score": value, "detail": detail})) == (value, detail)


@given(st.text())
def test_any_prompt_is_kept_or_refused(prompt: str) -> None:
    try:
        task = parse_task(json.dumps({"prompt": prompt}))
    except BadTask:
        assert not prompt.strip() or "\0" in prompt
        return
    assert task.prompt == prompt


@pytest.mark.parametrize(
    "line", [b"", b"3", b"[]", b'{"prompt": 3}', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}']
)
def test_what_is_no_task_is_refused(line: bytes) -> None:
    with pytest.raises(BadTask):
        parse_task(line)
