"""Sampled text taken apart: arguments byte for byte, never half a call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.proxy.parsing import FORMS, Parsed, parse


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
    ("payload", "arguments"),
    [
        ('{"name": "bash", "arguments": {"command": "echo bad", }}', '{"command": "echo bad", }'),
        ('{"arguments": {"command": "echo bad", } , "name": "bash"}', '{"command": "echo bad", }'),
        ('{"name": "bash", "arguments": {"a": "x}}', '{"a": "x}'),
        ('{"name": "bash", "arguments": {"a": 1}', '{"a": 1}'),  # a bracket too few, whole arguments
        ('{"name": "bash", "arguments": {"a": [1}}', '{"a": [1}'),
        ('{"name": "bash", "arguments": {"a": "line\nbreak"}}', '{"a": "line\nbreak"}'),
        ('{"name": "bash", "arguments": {"a": NaN}}', '{"a": NaN}'),
        ('{"name": "bash", "arguments": "{}"}', '"{}"'),
        ('{"name": "bash", "arguments": [1]}', "[1]"),
        ('{"name": "bash", "arguments": {}} and more', "{}"),
        ('{"name": "bash", ', "{}"),
        ('{"name": "bash", "parameters": {"a": 1}}', '{"a": 1}'),
    ],
)
def test_a_malformed_call_keeps_its_name_and_its_raw_arguments(payload, arguments):
    """The harness answers with its own error; a good call beside it is untouched."""
    text = "x " + call(payload) + "\n" + call('{"name": "y", "arguments": {}}')
    assert parse(text, cut=False) == Parsed("x ", None, (("bash", arguments), ("y", "{}")))
    assert parse(call(payload), cut=False).calls == (("bash", arguments),)


@pytest.mark.parametrize(
    "payload",
    ['{"name": "", "arguments": {}}', '{"name": 5}', '{"arguments": {}}', "", "no JSON", "[" * 5000],
)
def test_a_call_without_a_name_stays_text(payload):
    text = "x " + call(payload) + " y"
    assert parse(text, cut=False) == Parsed(text, None, ())


def test_a_list_of_calls_in_one_tag():
    text = call('[{"name": "a", "arguments": {"k": [1,  2]}}, {"name": "b", "arguments": {"x": }}]')
    assert parse(text, cut=False).calls == (("a", '{"k": [1,  2]}'), ("b", '{"x": }'))


def test_a_call_inside_a_malformed_one_is_not_run():
    inner = json.dumps(call('{"name": "bash", "arguments": {"command": "rm"}}'))
    text = call(f'{{"name": "bash", "arguments": {{"command": {inner}, }}}}')
    assert parse(text, cut=False) == Parsed("", None, (("bash", f'{{"command": {inner}, }}'),))


def test_a_broken_tagged_call_leaves_the_good_one_beside_it_alone():
    good = "<tool_call>\n<function=g>\n<parameter=a>\ny\n</parameter>\n</function>\n</tool_call>"
    parsed = parse(f"{BROKEN_XML}\n{good}", cut=False, form=FORMS["xml"])
    assert parsed.calls == (("f", "<parameter=a>\nx"), ("g", '{"a": "y"}'))


def test_two_identical_calls_are_two():
    one = call('{"name": "bash", "arguments": {"command": "ls"}}')
    assert parse(one + "\n" + one, cut=False).calls == (("bash", '{"command": "ls"}'),) * 2


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


def test_a_call_that_the_policy_did_not_end_is_one_when_nothing_was_cut():
    text = 'x\n<tool_call>\n{"name": "bash", "arguments": {}}'
    assert parse(text, cut=False) == Parsed("x", None, (("bash", "{}"),))
    assert parse(text, cut=True) == Parsed("x\n", None, ())


@pytest.mark.parametrize(
    "inside", ["</tool_call>", "a {} </tool_call> b", "<tool_call>", "\\n</tool_call>\\n"]
)
def test_an_end_tag_in_a_string_does_not_make_half_a_call_whole(inside):
    """pi runs what it can repair: half a call must not leave, whatever its strings hold."""
    whole = call(f'{{"name": "bash", "arguments": {{"command": "echo {inside} && rm -r x"}}}}')
    for n in range(1, len(whole)):
        assert parse(whole[:n], cut=True).calls == ()
    assert len(parse(whole, cut=True).calls) == 1


PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f"', '"arguments": ', "{", "}", "[", "]",
    '"', "\\", ",", ":", "\n", " ", "<function=f>", "</function>", "<parameter=a>", "</parameter>",
    "<arg_key>k", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]",
    "<|tool_call_begin|>functions.f:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|python_tag|>", ";", "x",
]  # fmt: skip
texts = st.text() | st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


@given(texts, st.booleans(), st.booleans(), st.sampled_from(sorted(FORMS)))
def test_any_text_parses(text, cut, thinking, form):
    """No text raises, and none makes arguments or a name that do not stand in it."""
    parsed = parse(text, cut=cut, thinking=thinking, form=FORMS[form])
    for name, arguments in parsed.calls:
        assert name
        assert name in text
        assert form in ("xml", "glm") or arguments == "{}" or arguments in text


BROKEN_XML = "<tool_call>\n<function=f>\n<parameter=a>\nx</tool_call>"
BROKEN_GLM = "<tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call>"
NONSENSE = [
    "<tool_call>", '\\"', '{"a": ', "<function=f><parameter=a>", "[TOOL_CALLS][{", call("{x"), call(""),
    BROKEN_XML, f"again {BROKEN_XML}", BROKEN_GLM, f"again {BROKEN_GLM}", "</tool_call><tool_call>",
]  # fmt: skip


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("piece", NONSENSE)
def test_long_nonsense_takes_no_longer_than_its_length(form, piece):
    """A policy that repeats itself to the token limit must not hold the proxy; a test's time limit tells."""
    for cut in (False, True):
        parse(piece * 10_000, cut=cut, form=FORMS[form])


@given(
    st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
)
def test_any_arguments_survive(arguments):
    text = json.dumps(arguments)
    assert parse(call(f'{{"name": "f", "arguments": {text}}}'), cut=False).calls == (("f", text),)
