"""What is new is rendered alone, where that gives the same ids as rendering the whole history again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.identity import Identity
from ingest.proxy.execution import Execution, Recall
from ingest.proxy.neutral import Message
from ingest.proxy.rendering import Renderer, RenderingError
from ingest.proxy.windows import window
from tests.support.driven_execution import Driven, call_text, result, system, user
from tests.support.templates import template
from tests.support.tiny_model import TEMPLATE, make_tokenizer

TOKENIZER = make_tokenizer()
END = TOKENIZER.token_to_id("<|im_end|>")
SOURCES = {name: template(name) for name in ("qwen3", "qwen2_5", "qwen3_5_think", "glm4moe")} | {
    "tiny": TEMPLATE
}
RENDERERS = {name: Renderer(TOKENIZER, source, {}, [END]) for name, source in SOURCES.items()}
NAMES = {"u": "user", "s": "system", "A": "assistant", "T": "tool"}
COUNTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if LIMIT %}{{ loop.index }}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize("name", SOURCES)
def test_real_templates_allow_it(name):
    assert RENDERERS[name].windowed


def test_a_template_that_looks_further_back_does_not():
    renderer = Renderer(TOKENIZER, COUNTS.replace("LIMIT", "true"), {}, [END])
    assert not renderer.windowed
    messages = [Message("user", "u"), Message("assistant", "x"), Message("user", "v")]
    with pytest.raises(RenderingError, match="must see the whole history"):
        renderer.render_after(messages, 1, now_us=0, turns={1})


def test_a_window_is_the_beginning_and_the_last_question():
    messages = [Message(NAMES[r], "x") for r in "susATATuATAT"]
    assert window(messages, 3) == [0, 1, 2]
    assert window(messages, 5) == [0, 1, 2]
    assert window(messages, 10) == [0, 1, 2, 7]


conversations = st.text(alphabet="uATs", min_size=1, max_size=14).map(lambda rest: "u" + rest + "A")


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=60, deadline=None)
@given(
    conversations,
    st.text(alphabet="uTs", max_size=4),
    st.booleans(),
    st.sampled_from([{}, {"enable_thinking": False}]),
)
def test_the_end_is_that_of_the_whole(name, before, new, tools, options):
    messages = [
        Message(NAMES[r], f"text {k}", call_id="c" if r == "T" else "") for k, r in enumerate(before + new)
    ]
    turns = {k for k, m in enumerate(messages) if m.role == "assistant"}
    offered = [
        {"type": "function", "function": {"name": f"f{k}", "parameters": {}}} for k in range(3 * tools)
    ]
    base, renderer = len(before) - 1, RENDERERS[name]
    whole = renderer.render(messages, offered, options, now_us=0, turns=turns)
    end = renderer.render_after(messages, base, offered, options, now_us=0, turns=turns)
    assert whole.text.endswith(end.text)
    assert renderer.pieces(end.text)[1:] == renderer.pieces(whole.text)[1 + sorted(turns).index(base) :]
    assert end.generation == whole.generation


def words(renderer, k):
    """A turn with a call, as the template's model writes it; the third is followed by a user."""
    if renderer.form.name == "xml":
        call = f"<function=bash>\n<parameter=command>\nls {k}\n</parameter>\n</function>"
        return f"so {k}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
    if renderer.form.name == "glm":
        call = f"<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls {k}</arg_value>\n</tool_call>"
        return f"\n<think>so {k}</think>\n{call}"
    return f"<think>\nso {k}\n</think>\n\n" + call_text(f'{{"command": "ls {k}"}}')


def run(driven, turns=10):
    """A long conversation with questions of a user in between; the messages at its end."""
    messages = [system("s"), user("u")]
    for k in range(turns):
        answer = driven.ask(messages, words(driven.renderer, k))
        messages = [*messages, answer, result(answer, f"r{k}")]
        if k % 4 == 3:
            messages.append(user(f"go on {k}"))
    return messages


@pytest.mark.parametrize("name", SOURCES)
def test_the_prompts_are_those_of_rendering_the_whole(name, monkeypatch):
    short = Driven(RENDERERS[name])
    run(short)
    whole = Driven(Renderer(TOKENIZER, SOURCES[name], {}, [END]))
    monkeypatch.setattr(whole.renderer, "windowed", False, raising=False)
    run(whole)
    assert short.prompts == whole.prompts
    assert [e.relation for e in short.events.values()] == ["restarts"] + ["extends"] * 9
    assert all(e.difference == "" for e in short.events.values())


@pytest.mark.parametrize("name", SOURCES)
def test_after_a_restart_the_turns_are_opened_as_they_were(name):
    """Qwen3.5's template puts an empty think block before every turn that it did not sample itself."""
    driven = Driven(RENDERERS[name])
    messages = run(driven, 3)
    execution = Execution(Identity("g-1", "e-1"), driven.renderer, "scripted", 0)
    execution.recall(Recall(list(driven.events.values()), set(), set()))
    driven.execution = execution
    driven.ask(messages, "x")
    assert (driven.event.relation, driven.event.parent_call_id) == ("extends", 2)


def test_a_template_that_shows_itself_later_is_noticed_and_seen_whole_from_then_on():
    renderer = Renderer(
        TOKENIZER, COUNTS.replace("LIMIT", "messages | length > 24"), {}, [END], parser="hermes"
    )
    assert renderer.windowed
    driven = Driven(renderer)
    run(driven, 17)
    assert not renderer.windowed
    again = Driven(Renderer(TOKENIZER, COUNTS.replace("LIMIT", "true"), {}, [END], parser="hermes"))
    run(again, 17)
    assert driven.prompts[-1][-40:] == again.prompts[-1][-40:]
