"""Executions of a clumsy agent, from which a model learns courier's syntax and none of its answers.

The clumsy agent writes well-formed calls and quotes fields faithfully; *which* field it quotes is
drawn at random.  It scores about 0.27: what is left for reinforcement to learn is the choice.
(An agent that draws *values* instead would leave retrieval itself to be discovered: too hard.)
"""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ingest.courier.chat import Function, Message, ToolCall, dumps
from ingest.courier.harness import COMPACT, Outcome, Request, conversation
from ingest.courier.task import ENTRY, GOODS, LABEL, NAMES, PLACE, make_task, parse_task, sample, score
from ingest.courier.tokenizer import TEMPLATE, build_tokenizer

SCHEMA = pa.schema(
    [
        ("execution", pa.int32()),
        ("batch", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("targets", pa.list_(pa.bool_())),
    ]
)
FILE = "demonstrations.parquet"


def _tojson(value: object, separators: tuple[str, str] | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, separators=separators)


_environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
_environment.filters["tojson"] = _tojson  # as Hugging Face has it: jinja's own escapes for HTML
_template = _environment.from_string(TEMPLATE)


def render(messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
    """The text of a conversation by the chat template."""
    return _template.render(
        messages=msgspec.to_builtins(messages), add_generation_prompt=add_generation_prompt
    )


def calls(name: str, arguments: Mapping[str, object]) -> Message:
    """An assistant's message that calls one tool."""
    function = Function(name, dumps(arguments))
    return Message(role="assistant", tool_calls=(ToolCall(id="call_0", function=function),))


def says(text: str) -> Message:
    """An assistant's message in words."""
    return Message(role="assistant", content=text)


def read_objects(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The JSON objects that an agent has been shown, in order, its own words left out."""
    shown = (m.text for m in messages if m.role != "assistant")
    return [json.loads(found) for text in shown for found in re.findall(r"\{[^{}]*\}", text)]


def clumsy(request: Request, rng: random.Random) -> Message:
    """The clumsy agent's answer: right syntax, a field drawn uniformly among those of the right kind."""
    shown, last = read_objects(request.messages), request.messages[-1]

    def quote(objects: Sequence[dict[str, Any]], kind: Sequence[str], count: int = 1) -> dict[str, Any]:
        fields = {k: v for o in objects for k, v in o.items() if k in kind}
        return dict(sample(rng, list(fields.items()), min(count, len(fields))))

    numbers = PLACE + LABEL + ENTRY
    if request.role == "sub-agent":
        return calls("look", shown[-1]) if last.role == "user" else says(dumps(quote(shown[-1:], ENTRY)))
    if last.text == COMPACT:
        return says(dumps(quote(shown[-2:], numbers, 2)))
    if last.text.startswith("Summary"):
        return calls("deliver", quote(shown[-1:], numbers, 2))
    if last.text == "signed":
        return says("done")
    turn = sum(m.role == "assistant" for m in request.messages)
    tool, kind = (("find", GOODS), ("take", PLACE), ("ask", NAMES))[turn]
    return calls(tool, quote(shown, kind))


def clumsy_execution(seed: int, number: int) -> tuple[list[tuple[Message, ...]], float]:
    """The contexts of one execution at full length (main 1, clerk, main 2), and its score."""
    task = parse_task(make_task(seed, -1 - number))  # never a task of the run itself
    rng, outcome = random.Random(f"demonstration/{seed}/{number}"), Outcome()
    talk, contexts = conversation(task, outcome), dict[tuple[str, ...], tuple[Message, ...]]()
    try:
        request = next(talk)
        while True:
            answer = clumsy(request, rng)
            contexts[tuple(m.text for m in request.messages[:2])] = (*request.messages, answer)
            request = talk.send(answer)
    except StopIteration:
        return list(contexts.values()), score(task, outcome.workspace)


def answers_only(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """bool (n,): which of the int32 ids (n,) an assistant wrote, its end token included.

    Holds for whole conversations (one after another, too): each turn is opened and closed once.
    """
    begin, end = (tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>"))
    head = np.array(tokenizer.encode("<|im_start|>assistant\n").ids)
    opened = np.zeros(len(ids), bool)
    if len(ids) >= len(head):
        opened[: len(ids) - len(head) + 1] = (
            np.lib.stride_tricks.sliding_window_view(ids, len(head)) == head
        ).all(axis=1)
    turn = np.cumsum(ids == begin)  # the turn that a token stands in, from 1
    place = np.arange(len(ids)) - np.maximum.accumulate(np.where(ids == begin, np.arange(len(ids)), 0))
    ours: np.ndarray = np.append(False, opened[ids == begin])[turn]
    closed = np.cumsum(ids == end) - (ids == end) >= turn  # after the turn's own end token
    return np.asarray(ours & (place >= len(head)) & ~closed)


def demonstrations(seed: int, executions: int, per_batch: int = 2) -> tuple[pa.Table, float]:
    """One row a sequence (SCHEMA), the sequences of an execution together, and the mean score.

    `targets[i]` says whether token i is one to learn; `batch` counts steps of `per_batch` executions.
    A function of its arguments alone.
    """
    if executions < 1 or per_batch < 1:
        raise ValueError(f"{executions} executions in batches of {per_batch}: at least 1 of each is needed")
    tokenizer = build_tokenizer()
    texts, owner, scores = list[str](), list[int](), list[float]()
    for number in range(executions):
        contexts, value = clumsy_execution(seed, number)
        texts += map(render, contexts)
        owner += [number] * len(contexts)
        scores.append(value)
    rows = [np.array(e.ids, np.int32) for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int32)
    ids = np.concatenate(rows)
    execution = np.array(owner, np.int32)
    columns = [
        pa.array(execution),
        pa.array(execution // np.int32(per_batch)),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(answers_only(ids, tokenizer))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA), statistics.fmean(scores)


def write_demonstrations(folder: str | Path, seed: int, executions: int, per_batch: int = 2) -> float:
    """Write demonstrations.parquet into an existing folder; the mean score of what is shown."""
    table, mean = demonstrations(seed, executions, per_batch)
    pq.write_table(table, Path(folder) / FILE, compression="zstd")
    return mean
