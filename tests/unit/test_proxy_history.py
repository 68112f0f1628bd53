"""The token prefix is sacred: cases from public bug reports (public-cases.md), by number.

Each drives an execution request by request; `Driven.ask` also checks that every recorded call
reconstructs to exactly the ids that were sent and sampled.
"""

from __future__ import annotations

import json

import pytest

from ingest.proxy.neutral import Rejected
from ingest.proxy.rendering import Renderer
from lake.events import EventError
from tests.support.driven_execution import Driven, call_text, result, system, user
from tests.support.tiny_model import TEMPLATE, make_tokenizer

TOKENIZER = make_tokenizer()
END = TOKENIZER.token_to_id("<|im_end|>")
RENDERER = Renderer(TOKENIZER, TEMPLATE, {}, [END])

ODD = '{\n  "command" :  "echo h\\u00e9llo \\/tmp",  "n": 1.50\n}'


@pytest.fixture
def driven():
    return Driven(RENDERER)


def sampled(text):
    """Ids that encode would never give: one token a character, so that encoding again is seen."""
    return [i for c in text for i in TOKENIZER.encode(c, add_special_tokens=False).ids] + [END]


def begins_with(longer, shorter):
    return longer[: len(shorter)] == shorter


def test_case_1_prompt_2_is_prompt_1_and_the_sampled_ids_and_the_new(driven):
    ids = sampled(call_text(ODD))
    answer = driven.ask([system("s"), user("u")], ids)
    driven.ask([system("s"), user("u"), answer, result(answer, "r")], "done")
    new = driven.encode(
        "\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert driven.prompts[1] == driven.prompts[0] + ids + new
    assert (driven.event.relation, driven.event.parent_call_id, driven.event.difference) == ("extends", 0, "")


def test_case_2_a_replay_with_empty_content_restores_the_call(driven):
    ids = sampled("Let me look.\n" + call_text('{"command": "ls"}'))
    answer = driven.ask([user("u")], ids)
    for content in ("", None, []):
        driven.ask([user("u"), answer | {"content": content}, result(answer, "r")], "done")
        assert begins_with(driven.prompts[-1], driven.prompts[0] + ids)


def test_case_3_an_empty_think_block_of_the_generation_prompt_stays(driven):
    options = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = driven.ask([user("u")], "yes", **options)
    assert driven.prompts[0][-5:] == driven.encode("<think>\n\n</think>\n\n")[-5:]
    driven.ask([user("u"), answer, user("more")], "no", **options)
    assert begins_with(driven.prompts[1], driven.prompts[0] + driven.encode("yes<|im_end|>"))


def test_case_4_earlier_reasoning_is_kept_whatever_the_template_would_drop(driven):
    """The declared policy: sampled turns are kept.  This template drops reasoning before a user message."""
    dropping = TEMPLATE.replace("message.reasoning_content %}", "message.reasoning_content and loop.last %}")
    driven = Driven(Renderer(TOKENIZER, dropping, {}, [END]))
    answer = driven.ask([user("u")], "<think>\nlong\n</think>\n\nyes")
    driven.ask([user("u"), answer, user("more")], "no")
    assert driven.event.relation == "extends"
    assert begins_with(driven.prompts[1], driven.prompts[0] + driven.encode("<think>\nlong\n</think>\n\nyes"))


def test_case_5_an_edited_message_branches_from_the_last_equal_one(driven):
    first = driven.ask([user("u")], sampled("one"))
    second = driven.ask([user("u"), first, user("two?")], sampled("two"))
    driven.ask([user("u"), first, user("two?"), second, user("three?")], "three")
    driven.ask([user("u"), first, user("TWO?"), second, user("three?")], "other")
    event = driven.event
    assert (event.relation, event.parent_call_id) == ("branches", 1)
    assert event.difference == "message 2 (user): text differs from call 1"
    assert begins_with(driven.prompts[3], driven.prompts[0] + sampled("one"))
    driven.ask([user("u"), first, user("two?"), second, user("three?"), user("four?")], "the old one stays")
    assert driven.event.relation == "branches"  # the answer of call 2 was dropped
    assert "message 5 (user) comes where call 2 answered" in driven.event.difference


@pytest.mark.parametrize(
    "back",
    [
        '{"location":"SF"}',
        '{ "location" : "SF" }',
        '{"location": "\\u0053F"}',
        '{"other": 1, "location": "SF"}',
        '{"__unparsedToolInput": {"raw": "x", "len": 1}}',
        '{"n": 10000}',
        "not JSON",
    ],
)
def test_case_6_rewritten_arguments_are_the_sampled_tokens(driven, back):
    ids = sampled(call_text('{"location": "SF"}'))
    answer = driven.ask([user("u")], ids)
    again = json.loads(json.dumps(answer))
    again["tool_calls"][0]["function"]["arguments"] = back
    driven.ask([user("u"), again, result(answer, "r")], "done")
    assert begins_with(driven.prompts[1], driven.prompts[0] + ids)
    assert driven.event.relation == "extends"
    assert driven.event.difference == "call_000000_00 came back with other arguments"
    again["tool_calls"][0]["function"]["name"] = "invalid"
    driven.ask([user("u"), again, result(answer, "r"), user("x")], "done")
    assert "came back with the name 'invalid'" in driven.event.difference


def test_case_7_the_client_gets_the_sampled_argument_bytes(driven):
    answer = driven.ask([user("u")], call_text(ODD))
    assert answer["tool_calls"][0]["function"] == {"name": "bash", "arguments": ODD}
    driven.ask([user("u"), answer, result(answer, "r é")], "done")
    (tool,) = driven.calls[1].tools
    assert (tool.name, tool.arguments, tool.result) == ("bash", ODD.encode(), "r é".encode())
    assert (tool.call_id, tool.started_us, tool.stopped_us) == (0, 5, 7)
    driven.ask([user("u"), answer, result(answer, "r é"), user("x")], "done")
    assert driven.calls[2].tools == []  # once for each id


def test_case_11_null_content_with_tool_calls(driven):
    answer = driven.ask([user("u")], call_text('{"command": "ls"}'))
    assert answer["content"] is None
    foreign = answer | {"tool_calls": [answer["tool_calls"][0] | {"id": "theirs"}]}
    driven.ask([user("v"), foreign, {"role": "tool", "tool_call_id": "theirs", "content": "r"}], "done")
    assert 'assistant\n\n<tool_call>\n{"name": "bash"' in TOKENIZER.decode(
        driven.prompts[1], skip_special_tokens=False
    )


def test_case_12_content_lists_and_strings_are_the_same_message(driven):
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "good"}]
    mid = lambda content: [user("u"), {"role": "system", "content": content}, user("v")]  # noqa: E731
    answer = driven.ask(mid(parts), "x")
    driven.ask([*mid("be good"), answer, user("w")], "y")
    assert (driven.event.relation, driven.event.parent_call_id) == ("extends", 0)


def test_case_15_edited_reasoning_is_not_a_continuation(driven):
    ids = sampled("<think>\nI know.\n</think>\n\nyes")
    answer = driven.ask([user("u")], ids)
    assert (answer["reasoning_content"], answer["content"]) == ("I know.", "yes")
    driven.ask([user("u"), answer | {"reasoning_content": "I knew."}, user("v")], "done")
    assert not begins_with(driven.prompts[1], driven.prompts[0] + ids)
    assert driven.event.relation == "branches"
    assert "message 1 (assistant): reasoning differs from the answer of call 0" in driven.event.difference


def test_case_16_a_stop_token_that_is_also_the_next_delimiter_counts_once():
    delimiting = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{{ m.content }}"
        "{% else %}<|im_end|>{{ m.content }}{% endif %}{% endfor %}<|im_start|>"
    )
    driven = Driven(Renderer(TOKENIZER, delimiting, {}, [END]))
    answer = driven.ask([user("u")], "yes")
    driven.ask([user("u"), answer, user("v")], "no")
    assert driven.prompts[1] == driven.encode("<|im_end|>u<|im_start|>yes<|im_end|>v<|im_start|>")


def test_case_17_every_call_has_its_own_id_and_its_own_generation(driven):
    two = [
        sampled(call_text('{"command": "a"}') + "\n" + call_text('{"command":"a"}')),
        sampled(call_text('{"command": "a"}')),
    ]
    first = driven.ask([user("u")], two[0])
    results = [result(first, "r"), result(first, "s", 1)]
    second = driven.ask([user("u"), first, *results], two[1])
    ids = [c["id"] for m in (first, second) for c in m["tool_calls"]]
    assert len(set(ids)) == 3
    driven.ask([user("u"), first, *results, second, result(second, "t")], "done")
    assert begins_with(driven.prompts[2], driven.prompts[1] + two[1])
    assert [t.tool_call_id for t in driven.calls[1].tools] == ids[:2]


def test_case_18_parallel_results_in_the_other_order_stay_as_received(driven):
    first = driven.ask([user("u")], call_text("{}") + "\n" + call_text('{"b": 1}'))
    swapped = [user("u"), first, result(first, "second", 1), result(first, "first", 0)]
    answer = driven.ask(swapped, "ok")
    text = TOKENIZER.decode(driven.prompts[1], skip_special_tokens=False)
    assert text.index("second") < text.index("first")
    driven.ask([*swapped, answer, user("more")], "done")
    assert driven.event.relation == "extends"


def test_case_22_dropped_reasoning_is_restored(driven):
    """With calls and without; also where the end was trimmed."""
    ids = sampled("<think>\nI see. \n</think>\n\n" + call_text("{}"))
    first = driven.ask([user("u")], ids)
    for sent in (None, "I see."):
        back = {k: v for k, v in first.items() if k != "reasoning_content"} | {"reasoning_content": sent}
        driven.ask([user("u"), back, result(first, "r")], "x")
        assert begins_with(driven.prompts[-1], driven.prompts[0] + ids)
    text_only = sampled("<think>\nwell\n</think>\n\nyes ")
    answer = driven.ask([user("w")], text_only)
    at = len(driven.prompts) - 1
    driven.ask([user("w"), {"role": "assistant", "content": "yes"}, user("x")], "z")
    assert answer["content"] == "yes "
    assert begins_with(driven.prompts[-1], driven.prompts[at] + text_only)


def test_case_23_a_call_cut_by_the_limit_poisons_nothing(driven):
    answer = driven.ask([user("u")], 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"comm', stop=False)
    assert "tool_calls" not in answer
    assert answer["content"] == "I look.\n"
    assert driven.recorded[0].answer.finish == "length"
    driven.ask([user("u"), answer, user("go on")], "done")
    assert driven.event.relation == "extends"
    # The turn has no end token of its own: the template's closes it.
    assert begins_with(
        driven.prompts[1],
        driven.prompts[0]
        + driven.encode('I look.\n<tool_call>\n{"name": "bash", "arguments": {"comm')
        + [END],
    )


def test_case_24_the_stop_token_is_in_the_prefix_and_not_in_the_text(driven):
    answer = driven.ask([user("u")], "yes")
    assert answer["content"] == "yes"
    driven.ask([user("u"), answer, user("v")], "no")
    prefix = driven.prompts[0] + driven.encode("yes<|im_end|>\n<|im_start|>user")
    assert begins_with(driven.prompts[1], prefix)


# ----------------------------------------------------------------------- beyond the numbered ones
def test_a_dropped_turn_makes_a_sibling(driven):
    first = driven.ask([user("u")], "no call here")
    dropped = [user("u"), user("Please call a tool.")]
    second = driven.ask(dropped, call_text("{}"))
    assert (driven.event.relation, driven.event.parent_call_id) == ("branches", 0)
    assert "its answer was dropped" in driven.event.difference
    driven.ask([*dropped, second, result(second, "r")], "x")
    assert (driven.event.relation, driven.event.parent_call_id) == ("extends", 1)
    driven.ask([user("u"), first, user("the first again")], "y")
    assert begins_with(driven.prompts[-1], driven.prompts[0] + driven.encode("no call here"))


def test_an_undelivered_answer_is_never_continued_and_its_request_is_a_retry(driven):
    assert driven.ask([user("u")], "lost", delivered=False) is None
    answer = driven.ask([user("u")], "lost")
    assert (driven.event.retry_of, driven.event.relation) == (0, "branches")
    assert driven.event.difference == "the same messages as call 0"
    driven.ask([user("u"), answer, user("v")], "x")
    assert (driven.event.parent_call_id, driven.event.relation) == (1, "extends")
    driven.ask([user("u")], "again")
    assert driven.event.retry_of is None


def test_a_new_conversation_restarts(driven):
    driven.ask([system("main"), user("u")], "x")
    driven.ask([system("sub"), user("u")], "x")
    assert driven.event.relation == "restarts"
    assert "message 0 (system): text differs" in driven.event.difference


def test_changed_tools_branch_but_turns_stay_as_sampled(driven):
    ids = sampled(call_text("{}"))
    answer = driven.ask([user("u")], ids)
    driven.ask([user("u"), answer, result(answer, "r")], "x", tools=None)
    assert driven.event.relation != "extends"
    assert driven.event.difference == "the rendering before message 1 is not that of call 0"
    text = driven.prompts[1]
    assert any(text[k : k + len(ids)] == ids for k in range(len(text)))


def test_a_turn_known_by_its_ids_keeps_its_tokens_on_another_path(driven):
    """After a compaction: the last call and its result stand behind a summary."""
    ids = sampled("<think>\nhm\n</think>\n\n" + call_text('{"command":  "ls"}'))
    answer = driven.ask([user("long history")], ids)
    compacted = [user("summary"), answer, result(answer, "r")]
    second = driven.ask(compacted, "x")
    assert any(driven.prompts[1][k : k + len(ids)] == ids for k in range(len(driven.prompts[1])))
    driven.ask([*compacted, second, user("y")], "z")
    assert (driven.event.relation, driven.event.parent_call_id) == ("extends", 1)


def test_a_history_that_ends_with_an_assistant_message_is_valid(driven):
    answer = driven.ask([user("u")], "half")
    driven.ask([user("u"), answer], "other half")
    assert driven.event.relation == "extends"
    assert begins_with(
        driven.prompts[1], driven.prompts[0] + driven.encode("half<|im_end|>\n<|im_start|>assistant\n")
    )


def test_a_template_without_places_for_turns_falls_back_and_says_so():
    strict = TEMPLATE.replace(
        "{%- elif message.role == 'tool' %}",
        "{%- elif message.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
        "{{ raise_exception('a tool message follows tool calls') }}{%- elif message.role == 'tool' %}",
    )
    driven = Driven(Renderer(TOKENIZER, strict, {}, [END]))
    answer = driven.ask([user("u")], sampled(call_text('{"command":  "ls"}')))
    driven.ask([user("u"), answer, result(answer, "r")], "x")
    assert driven.event.relation == "branches"
    assert "turns are rendered from their messages" in driven.event.difference


def test_a_template_that_refuses_is_a_400(driven):
    refusing = Driven(Renderer(TOKENIZER, "{{ raise_exception('no') }}", {}, [END]))
    with pytest.raises(Rejected, match="refuses these messages: no") as caught:
        refusing.ask([user("u")], "x")
    assert caught.value.status == 400


def test_an_answer_that_cannot_be_trusted_takes_no_id(driven):
    """Case 31: refused by name, never 0.0; the next call is call 0 still."""
    request_ids = [5, 6, END]
    call = None
    driven.ask([user("u")], request_ids)
    call = driven.calls[0]
    import numpy as np

    from ingest.engines.client import Generation

    bad = Generation(
        output_ids=np.array([1, 2], np.int32), output_logprobs=np.array([-1.0], np.float32),
        finish_reason="stop", spans=(), cached_tokens=0, weight_version=0,
    )  # fmt: skip
    with pytest.raises(Rejected, match="e-1:1: 1 log-probabilities for 2 output ids") as caught:
        driven.execution.record(call, bad, delivered=True, now_us=0)
    assert isinstance(caught.value.__cause__, EventError)
    driven.ask([user("v")], "x")
    assert driven.event.call_id == 1


def test_an_event_too_large_is_refused_by_name(driven, monkeypatch):
    monkeypatch.setattr("ingest.proxy.execution.EVENT_BYTES_MAX", 1 << 20)
    with pytest.raises(Rejected, match="bytes of ids and log-probabilities, an event holds"):
        driven.ask([user("u")], [1] * 140_000)
    assert driven.execution.calls == 0
