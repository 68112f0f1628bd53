"""System messages where a template would not have them, and one clock of trying at the load."""

from __future__ import annotations

import pytest

from ingest.proxy.neutral import Message, ToolCall
from ingest.proxy.rendering import Renderer, RenderingError
from tests.support.templates import template
from tests.support.tiny_model import TEMPLATE, make_tokenizer, write_model_folder

TOKENIZER = make_tokenizer()
LINES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ONLY_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}"
)
ONLY_FIRST += "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NONE = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + ONLY_FIRST
IN_TURN = "{% for m in messages if m.role != 'system' %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
IN_TURN += "{{ raise_exception('in turn') }}{% endif %}{% endfor %}"
TO_FRONT = "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
TO_FRONT += "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LOSES = "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role }}: {{ m.content }}\n"
LOSES += "{% endif %}{% endfor %}"

MESSAGES = [
    Message("system", "S"), Message("system", "S2"), Message("user", "a"), Message("system", "M"),
    Message("assistant", "b"), Message("system", "N"), Message("user", "c"),
]  # fmt: skip


def lines(source, messages=MESSAGES):
    return Renderer(TOKENIZER, source, {}, [0]).render(messages, now_us=0).text.strip().split("\n")


def test_a_template_that_takes_all_gets_all():
    assert lines(LINES) == [f"{m.role}: {m.text}" for m in MESSAGES]


@pytest.mark.parametrize("source", [ONLY_FIRST, TO_FRONT, LOSES])
def test_refused_hoisted_or_lost_they_are_a_users_at_their_place(source):
    """Case 12: in place, whatever the template would make of them."""
    got = lines(source)
    assert got[-5:] == ["user: a", "user: M", "assistant: b", "user: N", "user: c"]
    assert "".join(got[:-5]).endswith("SS2")


def test_no_system_message_at_all():
    assert lines(NONE)[:4] == ["user: S", "user: S2", "user: a", "user: M"]


def test_in_turn_they_are_part_of_a_message():
    assert lines(IN_TURN + ONLY_FIRST) == [
        "system: S", "", "S2", "user: a", "", "M", "assistant: b", "user: N", "", "c",
    ]  # fmt: skip
    assert lines(IN_TURN + NONE)[:3] == ["user: S", "", "S2"]


def test_a_template_that_writes_arguments_as_text_gets_the_text():
    """DeepSeek's puts strings together; others iterate (case 8)."""
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments + ']' }}"
    source += "{% endfor %}{{ m.content }}\n{% endfor %}"
    for arguments in ('{"a":  1.50}', "no {JSON", ""):
        call = ToolCall("id", "f", arguments)
        assert (
            lines(source, [Message("user", "u"), Message("assistant", "x", None, (call,))])[1]
            == f"[{arguments}]x"
        )


def test_real_templates_keep_every_message_in_order():
    for name in ("qwen3", "qwen2_5", "qwen3_5_think"):
        text = (
            Renderer(TOKENIZER, template(name), {}, [0]).render(MESSAGES[0:1] + MESSAGES[2:], now_us=0).text
        )
        places = [text.index(f"\n{m.text}<|") for m in (MESSAGES[3], MESSAGES[4], MESSAGES[5])]
        assert places == sorted(places), name


def test_the_setting_names_another_template_and_another_parser(tmp_path):
    folder = write_model_folder(tmp_path / "model")
    other = tmp_path / "other.jinja"
    other.write_text("other{{ messages[0].content }}")
    renderer = Renderer.load(folder, chat_template=str(other), parser="qwen3-coder")
    assert renderer.render([Message("user", "u")], now_us=0).text == "otheru"
    assert renderer.form.name == "xml"
    assert Renderer.load(folder).form.name == "hermes"
    with pytest.raises(RenderingError, match=r"proxy\.parser is nosuch; one of hermes, xml"):
        Renderer.load(folder, parser="nosuch")
    with pytest.raises(RenderingError, match=r"proxy\.chat_template is .*which is no file"):
        Renderer.load(folder, chat_template=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "form"),
    [("qwen3", "hermes"), ("qwen2_5", "hermes"), ("qwen3_5_think", "xml"), ("glm4moe", "glm")],
)
def test_the_form_is_what_the_template_shows(name, form):
    assert Renderer(TOKENIZER, template(name), {}, [0]).form.name == form


def test_a_template_without_tools_has_no_form():
    assert Renderer(TOKENIZER, LINES, {}, [0]).form.name == "none"
    assert Renderer(TOKENIZER, TEMPLATE, {}, [0]).form.name == "hermes"
