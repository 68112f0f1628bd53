"""The token prefix is sacred, whatever is sampled and whatever a client does to its history."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.proxy.rendering import Renderer
from tests.support.driven_execution import Driven, call_text, user
from tests.support.templates import template
from tests.support.tiny_model import TEMPLATE, make_tokenizer

TOKENIZER = make_tokenizer()
END = TOKENIZER.token_to_id("<|im_end|>")
RENDERER = Renderer(TOKENIZER, TEMPLATE, {}, [END])


def sampled(text):
    return [i for c in text for i in TOKENIZER.encode(c, add_special_tokens=False).ids]


arguments = st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.integers(), max_size=2).map(
    json.dumps
)
outputs = st.one_of(
    st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=8),  # any ids, control tokens too
    st.text(max_size=6).map(sampled),
    arguments.map(call_text).map(sampled),
    st.tuples(st.text(max_size=6), arguments).map(
        lambda t: sampled(f"<think>\n{t[0]}\n</think>\n\n{call_text(t[1])}")
    ),
)


def harmless(draw, message):
    """What clients do to a turn that leaves it the same turn."""
    changed = json.loads(json.dumps(message))
    if draw(st.booleans()):
        changed.pop("reasoning_content", None)
    for call in changed.get("tool_calls", ()):
        if draw(st.booleans()):
            call["function"]["arguments"] = json.dumps({"re": "written"})
    if changed.get("tool_calls") and draw(st.booleans()):
        changed["content"] = ""
    return changed


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_continued_turn_is_its_sampled_ids(data):
    """Conversations that go on, step back, drop and repeat turns; every prompt against what it continues."""
    driven = Driven(RENDERER)
    conversations = [([user("u")], [])]  # (messages, the ids that they must begin with)
    texts = {}
    for _ in range(data.draw(st.integers(1, 7))):
        messages, begin = data.draw(st.sampled_from(conversations))
        stop = data.draw(st.booleans())
        ids = data.draw(outputs) + ([END] if stop else [])
        answer = driven.ask(messages, ids, stop=stop)
        prompt = driven.prompts[-1]
        assert prompt[: len(begin)] == begin
        back = harmless(data.draw, answer)
        # Two answers to the same messages that read the same: the client cannot say which it means.
        place = (json.dumps(messages), (answer["content"] or "").strip(), bool(answer.get("tool_calls")))
        if answer.get("tool_calls") or texts.setdefault(place, ids) == ids:
            results = [
                {"role": "tool", "tool_call_id": c["id"], "content": data.draw(st.text(max_size=3))}
                for c in answer.get("tool_calls", ())
            ]
            conversations.append(([*messages, back, *(results or [user("go on")])], prompt + ids))
        conversations.append(([*messages, user("you dropped it")], []))


RENDERERS = {"tiny": RENDERER} | {
    name: Renderer(TOKENIZER, template(name), {}, [END]) for name in ("qwen3", "qwen3_5_think", "glm4moe")
}


@pytest.mark.parametrize("name", RENDERERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_execution_that_is_recalled_before_every_call_is_the_same(name, data):
    """Its prompts, tree, answers and retries, whatever the client does; differences are told shorter.

    The one renders what follows a turn, the other all that there is: each is held against the other.
    """
    driven, again = Driven(RENDERERS[name]), Driven(RENDERERS[name])
    conversations = [[user("u")]]
    for _ in range(data.draw(st.integers(1, 6))):
        messages = data.draw(st.sampled_from(conversations))
        stop, delivered = data.draw(st.booleans()), data.draw(st.integers(0, 4)) > 0
        ids = data.draw(outputs) + ([END] if stop else [])
        again.recall()
        answer = driven.ask(messages, ids, stop=stop, delivered=delivered)
        assert again.ask(messages, ids, stop=stop, delivered=delivered) == answer
        assert again.prompts[-1] == driven.prompts[-1]
        one, two = (
            (e.parent_call_id, e.shared_len, e.relation == "extends", e.retry_of, e.place, e.context_ids)
            for e in (driven.event, again.event)
        )
        assert one == two
        tools, tools_again = driven.calls[-1].tools, again.calls[-1].tools
        assert [(t.tool_call_id, t.arguments, t.result) for t in tools_again] == [
            (t.tool_call_id, t.arguments, t.result) for t in tools
        ]
        if answer is None:
            continue
        back = harmless(data.draw, answer)
        results = [
            {"role": "tool", "tool_call_id": c["id"], "content": data.draw(st.text(max_size=3))}
            for c in answer.get("tool_calls", ())
        ]
        conversations.append([*messages, back, *(results or [user("go on")])])
        conversations.append([*messages, user("you dropped it")])
