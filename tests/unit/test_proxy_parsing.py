"""Sampled text taken apart: arguments byte for byte, never half a call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.proxy.parsing import Parsed, parse


def call(payload):
    return f"<tool_call>\n{payload}\n</tool_call>"


WEIRD = (
    '{\n  "description" : "Weird  JSON",\n  "n": 1.50, "big": 12345678901234567890, "e": "h\\u00e9 \\/tmp"\n}'
)


def test_arguments_leave_byte_for_byte():
    """Case 7: a parser that serialises again changes what the client, and the next prompt, holds."""
    text = "I look.\n" + call(f'{{"arguments": {WEIRD} , "name": "bash"}}')
    assert parse(text, cut=False) == Parsed("I look.", None, (("bash", WEIRD),))


def test_parallel_calls_and_text_around_them():
    text = "a\n" + call('{"name": "x", "arguments": {}}') + "\n" + call('{"name": "y"}') + "\nb"
    assert parse(text, cut=False) == Parsed("a\n\nb", None, (("x", "{}"), ("y", "{}")))


def test_reasoning_apart_and_text_kept_as_it_is():
    text = "<think>\nFirst.\n\nSpaces  kept? \n</think>\n\n  Leading and trailing\n\n"
    assert parse(text, cut=False) == Parsed("  Leading and trailing\n\n", "First.\n\nSpaces  kept? ", ())
    assert parse("still thinking", cut=True, thinking=True) == Parsed("", "still thinking", ())
    assert parse("so.\n</think>\nyes", cut=False, thinking=True) == Parsed("yes", "so.", ())
    assert parse("no block </think>", cut=False) == Parsed("no block </think>", None, ())


@pytest.mark.parametrize(
    "payload",
    [
        '{"name": "bash", "arguments": {"command": "echo bad", }}',
        '{"name": "bash", "arguments": "{}"}',
        '{"name": "bash", "arguments": [1]}',
        '{"name": "", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "bash", "arguments": {}} and more',
        "",
        "[" * 5000,
    ],
)
def test_a_malformed_call_stays_text(payload):
    text = "x " + call(payload) + " y"
    assert parse(text, cut=False) == Parsed(text, None, ())


def test_a_call_inside_a_malformed_one_is_not_run():
    inner = json.dumps(call('{"name": "bash", "arguments": {"command": "rm"}}'))
    text = call(f'{{"name": "bash", "arguments": {{"command": {inner}, }}}}')
    assert parse(text, cut=False).calls == ()


def test_an_end_tag_inside_a_string_does_not_end_the_call():
    arguments = '{"command": "echo </tool_call>"}'
    assert parse(call(f'{{"name": "bash", "arguments": {arguments}}}'), cut=False).calls == (
        ("bash", arguments),
    )


def test_a_cut_call_is_neither_call_nor_text():
    """Case 23, and pi, which repairs and runs half a call."""
    whole = call('{"name": "bash", "arguments": {"command": "echo whole"}}')
    for n in range(1, len(whole)):
        parsed = parse("I look.\n" + whole[:n], cut=True)
        assert parsed.calls == ()
    assert parse("I look.\n" + whole[:60], cut=True).text == "I look.\n"
    assert parse(whole + "\n" + whole[:60], cut=True).calls == (("bash", '{"command": "echo whole"}'),)


def test_a_call_without_its_end_is_text_when_nothing_was_cut():
    text = '<tool_call>\n{"name": "bash", "arguments": {}}'
    assert parse(text, cut=False) == Parsed(text, None, ())


@given(st.text(), st.booleans(), st.booleans())
def test_any_text_parses(text, cut, thinking):
    parsed = parse(text, cut=cut, thinking=thinking)
    assert parsed.calls == () or "<tool_call>" in text


@given(
    st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
)
def test_any_arguments_survive(arguments):
    text = json.dumps(arguments)
    assert parse(call(f'{{"name": "f", "arguments": {text}}}'), cut=False).calls == (("f", text),)
