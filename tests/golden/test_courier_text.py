"""The text that courier's model learns, token for token as in the prototype whose recipe learns.

`courier_prototype.json` was written by `prototypes/demo/task.py`: its vocabulary, three executions of
its clumsy agent and one of an agent that errs, with the ids of every call as its capture made them.
"""

import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ingest.courier.__main__ import main
from ingest.courier.chat import Function, Message, ToolCall
from ingest.courier.demonstrations import answers_only, demonstrations, render, write_demonstrations
from ingest.courier.harness import Outcome, conversation
from ingest.courier.task import Task, score
from ingest.courier.tokenizer import TEMPLATE, build_tokenizer, save
from tests.support.courier_agents import parsed

GOLDEN = json.loads((Path(__file__).parent / "courier_prototype.json").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def plain(messages):
    """The template in plain Python, for messages whose content is text or one call."""
    text = ""
    for m in messages:
        content = m.content or ""
        for call in m.calls:
            body = f'{{"name":"{call.function.name}","arguments":{call.function.arguments}}}'
            content += f"<tool_call>\n{body}\n</tool_call>"
        text += f"<|im_start|>{m.role}\n{content}<|im_end|>\n"
    return text


def test_the_vocabulary_is_the_prototypes(tokenizer):
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    assert [word for word, _ in vocabulary] == GOLDEN["vocabulary"]
    assert [number for _, number in vocabulary] == list(range(388))


@pytest.mark.parametrize("number", range(4))
def test_executions_have_the_prototypes_ids(tokenizer, number):
    told = GOLDEN["executions"][number]
    task = Task(
        task="courier", seed=0, number=0, **{k: told[k] for k in ("order", "place", "label", "entry")}
    )
    outcome = Outcome()
    talk = conversation(task, outcome)
    request = next(talk)
    for i, call in enumerate(told["calls"]):
        assert request.role == call["role"]
        text = render(request.messages, add_generation_prompt=True)
        assert text == plain(request.messages) + "<|im_start|>assistant\n"
        if number < 3:  # a call that is none is answered by a user here, by a tool there
            assert ids(tokenizer, text) == call["input_ids"]
        answer = parsed(call["answer"])
        assert (
            ids(tokenizer, render([answer]))[:-1]
            == ids(tokenizer, "<|im_start|>assistant\n") + call["output_ids"]
        )
        try:
            request = talk.send(answer)
        except StopIteration:
            assert i == len(told["calls"]) - 1
    assert outcome.status == told["status"]
    assert score(task, outcome.workspace) == told["score"]


def test_any_text_comes_back(tokenizer):
    for text in ("Order", "naïve — 你好 😀\n\t  x", '{"item":"lamp"}', "\x00\x7f", "<tool_call>", "a" * 300):
        assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text


def test_every_word_of_the_game_is_one_token(tokenizer):
    assert len(ids(tokenizer, '<tool_call>\n{"name":"take","arguments":{"shelf":32}}\n</tool_call>')) == 15
    assert all(len(ids(tokenizer, w)) == 1 for w in ("lamp", "Bob", "49", "shelf", "done", "error", "signed"))


def test_the_template_renders_a_call_as_the_model_writes_it():
    as_string = Message(
        role="assistant", tool_calls=(ToolCall(id="a", function=Function("take", '{"shelf": 32}')),)
    )
    kept = '<tool_call>\n{"name":"take","arguments":{"shelf": 32}}\n</tool_call>'
    assert render([as_string]) == f"<|im_start|>assistant\n{kept}<|im_end|>\n"
    environment = ImmutableSandboxedEnvironment()  # without trimming, too
    environment.filters["tojson"] = lambda v, separators=None: json.dumps(v, separators=separators)
    template = environment.from_string(TEMPLATE)
    calls = [{"function": {"name": "take", "arguments": {"shelf": 32, "why": [1, "x"]}}}]
    one = '<tool_call>\n{"name":"take","arguments":{"shelf":32,"why":[1,"x"]}}\n</tool_call>'
    both = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "assistant", "content": "Well.", "tool_calls": calls * 2},
        {"role": "tool", "content": [{"type": "text", "text": "empty"}], "tool_call_id": "x"},
    ]
    assert template.render(messages=both, add_generation_prompt=True) == (
        f"<|im_start|>assistant\n{one}<|im_end|>\n"
        f"<|im_start|>assistant\nWell.\n{one}\n{one}<|im_end|>\n"
        "<|im_start|>tool\nempty<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_saved_files_load(tmp_path, tokenizer):
    save(tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = plain([Message(role="user", content="Order {}")])
    assert loaded.encode(text).ids == tokenizer.encode(text).ids
    assert (tmp_path / "chat_template.jinja").read_text() == TEMPLATE
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert {int(i): t["content"] for i, t in config["added_tokens_decoder"].items()} == {
        i: GOLDEN["vocabulary"][i] for i in range(5)
    }


# -------------------------------------------------------------------------------- demonstrations
def test_targets_are_what_the_assistant_wrote(tokenizer):
    messages = [
        Message(role="system", content="assistant"),
        Message(role="user", content="Door?\nassistant\n"),
        Message(role="assistant", content="done"),
        Message(role="assistant", content=""),
        Message(role="tool", content="empty"),
    ]
    row = np.array(ids(tokenizer, render(messages)), np.int32)
    chosen = answers_only(np.concatenate([row, row]), tokenizer)
    assert (chosen[: len(row)] == chosen[len(row) :]).all()
    assert tokenizer.decode(row[chosen[: len(row)]].tolist(), skip_special_tokens=False) == (
        "done<|im_end|><|im_end|>"
    )
    assert not answers_only(np.array([7, 8], np.int32), tokenizer).any()


def test_demonstrations(tmp_path, tokenizer):
    table, mean = demonstrations(seed=0, executions=150, per_batch=2)
    assert table.equals(demonstrations(seed=0, executions=150, per_batch=2)[0])
    assert not table.equals(demonstrations(seed=1, executions=150, per_batch=2)[0])
    assert 0.21 < mean < 0.33
    execution = table["execution"].to_numpy()
    assert (np.diff(execution) >= 0).all()
    assert (np.bincount(execution) == 3).all()  # main, clerk, main again
    assert (table["batch"].to_numpy() == execution // 2).all()
    for row in table.slice(0, 30).to_pylist():
        assert len(row["token_ids"]) == len(row["targets"])
        learned = []
        text = tokenizer.decode(row["token_ids"], skip_special_tokens=False)
        for part in text.split("<|im_start|>")[1:]:
            if part.startswith("assistant\n"):
                learned += ids(tokenizer, part.removeprefix("assistant\n").removesuffix("\n"))
        assert [t for t, ours in zip(row["token_ids"], row["targets"], strict=True) if ours] == learned
    assert write_demonstrations(tmp_path, 0, 150) == mean
    assert pq.read_table(tmp_path / "demonstrations.parquet").equals(table)


def test_no_demonstration_without_a_number():
    with pytest.raises(ValueError, match="0 executions"):
        demonstrations(seed=0, executions=0)


def test_messages_on_the_wire_have_no_unset_fields():
    assert msgspec.to_builtins(Message(role="user", content="x")) == {"role": "user", "content": "x"}


def test_prepare_writes_what_a_warm_up_reads(tmp_path, capsys):
    folder = tmp_path / "v0"
    assert main(["prepare", "--folder", str(folder), "--seed", "3", "--executions", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["executions"] == 4
    assert sorted(p.name for p in folder.iterdir()) == [
        "chat_template.jinja",
        "demonstrations.parquet",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert pq.read_table(folder / "demonstrations.parquet").equals(demonstrations(3, 4)[0])
    assert main(["prepare", "--folder", str(folder), "--seed", "3", "--executions", "0"]) == 2
    assert main(["tasks", "--seed", "3", "--count", "0"]) == 2
    assert "at least" in capsys.readouterr().err
