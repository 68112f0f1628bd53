"""Traces of the paper's shape, from a seed: what a proxy without delta coding would have written down.

    raw = raw_calls(3)                        400 calls of execution 3, contexts up to 100k tokens
    to_arrow([raw])                           one row a call, the whole input in each
    lake("/tmp/lake", 512, distinct=64)       a lake of 512 executions: 204,800 calls, 265M own tokens

An execution is one agent with tools: its conversation grows by its own outputs and by what tools say, is
summed up when it is too long, and starts sub-agents.  Now and then a call is tried again (with another
output, which may begin alike; with the same; with the same, cut short), and now and then the harness
writes the history down with other tokens from the middle of an output on.  Executions of one group begin
with the same prompt.  Token ids have a Zipf distribution over 150,000 ids.

Figures of `PAPER` an execution: 15M tokens of inputs, 520k tokens that are not shared, 43 leaves, up to
some 200 nodes deep.  `WIDE`: every other call tries the one before it again, 200 leaves.
The lake of 512 executions takes half a minute to write, and 730 MB.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest.matching import encode
from lake.store import Store
from lake.tables import SCHEMAS
from tests.support import big_lake

ROLES = ("main", "main-summary", "sub-agent")
MAIN, SUMMARY, SUB_AGENT = range(3)
IDS = 150_000
TEXT = 1 << 23
"""Tokens of the one text that all others are pieces of."""

Ids = npt.NDArray[np.int32]
_Told = tuple[Ids, tuple[int, ...]]  # a conversation so far, and where its messages end
NOTHING: _Told = np.zeros(0, np.int32), ()


@dataclass(frozen=True)
class Lengths:
    """A log-normal distribution of lengths, cut off."""

    log_mean: float
    log_deviation: float
    most: int
    least: int = 8


@dataclass(frozen=True)
class Shape:
    """What the executions are like; the chances are of one call."""

    calls: int = 400
    context_max: int = 100_000  # a longer conversation is summed up
    prompt: tuple[int, int] = (1500, 8000)
    summary: tuple[int, int] = (800, 3000)
    sub_calls: tuple[int, int] = (4, 30)
    output: Lengths = Lengths(5.3, 0.9, 4000)
    tool: Lengths = Lengths(6.2, 1.2, 12_000)
    retry: float = 0.05  # the same input again, another output; half of them begin alike
    drift: float = 0.02  # the history has other tokens from the middle of the output on
    twin: float = 0.005  # the same call again
    cut: float = 0.005  # the same call again, its output cut short
    sub_agent: float = 0.04
    group_size: int = 16


PAPER = Shape()
WIDE = Shape(tool=Lengths(4.6, 0.8, 1000), retry=0.97, drift=0, twin=0, cut=0, sub_agent=0)
SMALL = Shape(
    calls=60, context_max=600, prompt=(20, 60), summary=(10, 30), sub_calls=(2, 5),
    output=Lengths(2.0, 0.7, 40, 1), tool=Lengths(2.5, 0.7, 60, 1), retry=0.1, drift=0.08, twin=0.05,
    cut=0.05, group_size=4,
)  # fmt: skip


@dataclass(frozen=True)
class RawExecution:
    """Calls one after another: call c has input_ids[input_offsets[c] : input_offsets[c + 1]], and so on.

    `roles` (int8) are places in ROLES, `versions` (int64) those of the policy that answered;
    log-probabilities (float32) lie as the outputs do.  The messages of an input end at
    message_ends[message_offsets[c] : message_offsets[c + 1]], counted from its begin.
    """

    execution: int
    group: int
    input_ids: Ids
    input_offsets: npt.NDArray[np.int64]
    output_ids: Ids
    output_offsets: npt.NDArray[np.int64]
    output_logprobs: npt.NDArray[np.float32]
    roles: npt.NDArray[np.int8]
    versions: npt.NDArray[np.int64]
    message_ends: npt.NDArray[np.int64]
    message_offsets: npt.NDArray[np.int64]

    @property
    def calls(self) -> int:
        return len(self.roles)

    @property
    def group_id(self) -> str:
        return f"group-{self.group:05d}"

    @property
    def execution_id(self) -> str:
        return f"{self.group_id}/{self.execution}"

    def input_of(self, call: int) -> Ids:
        return self.input_ids[self.input_offsets[call] : self.input_offsets[call + 1]]

    def output_of(self, call: int) -> Ids:
        return self.output_ids[self.output_offsets[call] : self.output_offsets[call + 1]]


@functools.lru_cache(maxsize=1)
def _text(seed: int) -> Ids:
    rank = np.arange(1, IDS + 1)
    chance = np.cumsum((rank + 2.7) ** -1.05)
    drawn = np.random.default_rng(seed).random(TEXT) * chance[-1]
    return np.searchsorted(chance, drawn).astype(np.int32)


def _and(told: _Told, *messages: Ids) -> _Told:
    """A conversation with more messages."""
    ends = (len(told[0]) + np.cumsum([len(m) for m in messages])).tolist()
    return np.concatenate([told[0], *messages]), (*told[1], *ends)


@dataclass
class _Agent:
    """One execution while it is written."""

    shape: Shape
    rng: np.random.Generator
    text: Ids
    prompts: list[Ids]
    inputs: list[_Told] = field(default_factory=list)
    outputs: list[Ids] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)

    def piece(self, n: int) -> Ids:
        start = int(self.rng.integers(0, len(self.text) - n))
        return self.text[start : start + n]

    def some(self, lengths: Lengths) -> Ids:
        n = self.rng.lognormal(lengths.log_mean, lengths.log_deviation)
        return self.piece(int(np.clip(n, lengths.least, lengths.most)))

    def between(self, bounds: tuple[int, int]) -> int:
        return int(self.rng.integers(*bounds))

    @property
    def full(self) -> bool:
        return len(self.inputs) >= self.shape.calls

    def call(self, role: int, told: _Told, output: Ids) -> Ids:
        self.inputs.append(told)
        self.outputs.append(output)
        self.roles.append(role)
        return output

    def answer(self, role: int, told: _Told) -> Ids:
        """One call, and perhaps another try of it: the output as the history has it."""
        s, chance = self.shape, self.rng.random()
        output = self.call(role, told, self.some(s.output))
        if chance < s.retry and not self.full:
            alike = int(self.rng.integers(0, min(20, len(output)))) if self.rng.random() < 0.5 else 0
            return self.call(role, told, np.concatenate([output[:alike], self.some(s.output)]))
        chance -= s.retry
        if 0 <= chance < s.drift:
            half = len(output) // 2
            return np.concatenate([output[:half], self.piece(len(output) - half + 1)])
        chance -= s.drift
        if 0 <= chance < s.twin and not self.full:
            return self.call(role, told, output)
        chance -= s.twin
        if 0 <= chance < s.cut and not self.full:
            self.call(role, told, output[: max(1, len(output) // 3)])
        return output

    def talk(self, role: int, prompt: _Told, most: int) -> None:
        """A conversation of about `most` calls, or until the execution has all of its calls."""
        s, told, end = self.shape, prompt, len(self.inputs) + most
        while not self.full and len(self.inputs) < end:
            output = self.answer(role, told)
            heard = self.some(s.tool)
            if role == MAIN and self.rng.random() < s.sub_agent:
                asked = _and(NOTHING, self.prompts[1 + self.between((0, 3))], self.some(s.tool))
                self.talk(SUB_AGENT, asked, self.between(s.sub_calls))
                heard = self.some(s.output)
            told = _and(told, output, heard)
            if len(told[0]) > s.context_max and not self.full:
                summary = self.piece(self.between(s.summary))
                if role == MAIN:
                    self.call(SUMMARY, _and(told, self.piece(40)), summary)
                told = _and(prompt, summary, self.piece(20))


def raw_calls(execution: int, shape: Shape = PAPER, seed: int = 0) -> RawExecution:
    """The calls of one execution: the same for the same arguments, whatever else is generated."""
    group = execution // shape.group_size
    text = _text(seed)
    of_group = np.random.default_rng([seed, 1, group])
    starts = of_group.integers(0, len(text) - shape.prompt[1], 4)
    prompts = [text[s : s + n] for s, n in zip(starts, of_group.integers(*shape.prompt, 4), strict=True)]
    rng = np.random.default_rng([seed, 2, execution])
    agent = _Agent(shape, rng, text, prompts)
    agent.talk(MAIN, _and(NOTHING, prompts[0]), shape.calls)
    inputs, ends = zip(*agent.inputs, strict=True)
    output_offsets = _offsets([len(o) for o in agent.outputs])
    return RawExecution(
        execution=execution,
        group=group,
        input_ids=np.concatenate(inputs),
        input_offsets=_offsets([len(i) for i in inputs]),
        output_ids=np.concatenate(agent.outputs),
        output_offsets=output_offsets,
        output_logprobs=-rng.exponential(0.5, int(output_offsets[-1])).astype(np.float32),
        roles=np.array(agent.roles, np.int8),
        versions=np.arange(shape.calls) * 3 // shape.calls,  # two new ones come while it runs
        message_ends=np.concatenate(ends),
        message_offsets=_offsets([len(e) for e in ends]),
    )


def _offsets(lengths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _lists(
    values: npt.NDArray[np.int32] | npt.NDArray[np.float32], offsets: npt.NDArray[np.int64]
) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _role_names(roles: npt.NDArray[np.int8]) -> pa.Array:
    return pa.array(ROLES).take(pa.array(roles))


def to_arrow(executions: Sequence[RawExecution]) -> pa.Table:
    """One row a call with its whole input, as `headrace import calls` takes them; a chunk an execution."""
    return pa.concat_tables([_rows(each) for each in executions])


def _rows(raw: RawExecution) -> pa.Table:
    return pa.table(
        {
            "group_id": pa.repeat(raw.group_id, raw.calls),
            "execution_id": pa.repeat(raw.execution_id, raw.calls),
            "call_id": pa.array(np.arange(raw.calls)),
            "role": _role_names(raw.roles),
            "input_ids": _lists(raw.input_ids, raw.input_offsets),
            "output_ids": _lists(raw.output_ids, raw.output_offsets),
            "output_logprobs": _lists(raw.output_logprobs, raw.output_offsets),
            "version": pa.array(raw.versions),
            "finish_reason": pa.repeat("stop", raw.calls),
        }
    )


@dataclass(frozen=True)
class Coded:
    """The same calls, delta coded: `parents` (-1: none), `shared`, what is new of each input; the outputs."""

    parents: npt.NDArray[np.int64]
    shared: npt.NDArray[np.int64]
    context_ids: Ids
    context_offsets: npt.NDArray[np.int64]
    output_ids: Ids
    output_offsets: npt.NDArray[np.int64]
    output_logprobs: npt.NDArray[np.float32]
    roles: npt.NDArray[np.int8]
    versions: npt.NDArray[np.int64]

    @property
    def own(self) -> npt.NDArray[np.int64]:
        """Tokens that each call adds: its new context and its output."""
        return np.diff(self.context_offsets) + np.diff(self.output_offsets)

    @property
    def leaves(self) -> int:
        """Calls that add something, and whose end no other call goes on from."""
        ends = self.shared + self.own
        gone_on = self.parents[(self.parents >= 0) & (self.shared == ends[self.parents])]
        return int((self.own > 0).sum() - len(np.unique(gone_on[self.own[gone_on] > 0])))


def coded(raw: RawExecution) -> Coded:
    """The canonical form: as much is shared as can be, the parent owns the last shared token."""
    parents, shared = encode(raw.input_ids, raw.input_offsets, raw.output_ids, raw.output_offsets)
    new = [raw.input_of(c)[n:] for c, n in enumerate(shared)]
    return Coded(
        parents=parents,
        shared=shared,
        context_ids=np.concatenate(new),
        context_offsets=_offsets([len(n) for n in new]),
        output_ids=raw.output_ids,
        output_offsets=raw.output_offsets,
        output_logprobs=raw.output_logprobs,
        roles=raw.roles,
        versions=raw.versions,
    )


def event_tables(
    executions: int, distinct: int, shape: Shape = PAPER, seed: int = 0
) -> Iterator[dict[str, pa.Table]]:
    """Event tables of `distinct` executions at a time, `executions` in all: the same ones under other ids.

    Each has the tables calls, executions, scores and groups.  Raises ValueError where `distinct` is not of
    whole groups, or does not divide `executions`.
    """
    if distinct % shape.group_size or executions % distinct:
        raise ValueError(
            f"{executions} executions of {distinct} distinct ones in groups of {shape.group_size}: "
            "whole groups are repeated, so each must divide the one before it"
        )
    columns = _calls([coded(raw_calls(e, shape, seed)) for e in range(distinct)])
    rng = np.random.default_rng([seed, 3])
    for start in range(0, executions, distinct):
        yield _tables(columns, range(start, start + distinct), shape, rng)


def tables_of(parts: Sequence[Coded], shape: Shape = PAPER) -> dict[str, pa.Table]:
    """Event tables of the first executions, coded already.  They must be of whole groups."""
    return _tables(_calls(parts), range(len(parts)), shape, np.random.default_rng([0, 3]))


def _tables(
    columns: dict[str, object], executions: range, shape: Shape, rng: np.random.Generator
) -> dict[str, pa.Table]:
    size = shape.group_size
    names = [(f"group-{e // size:05d}", f"group-{e // size:05d}/{e}", e % size) for e in executions]
    return {
        "calls": _named(columns, names, shape.calls, executions.start * shape.calls),
        "executions": big_lake.executions(names, shape.calls),
        "scores": big_lake.scores(rng, names),
        "groups": big_lake.groups_of(range(executions.start // size, executions.stop // size), size),
    }


def _calls(parts: Sequence[Coded]) -> dict[str, object]:
    """Columns of the calls that do not depend on their names."""
    context = np.concatenate([np.diff(p.context_offsets) for p in parts])
    output = np.concatenate([np.diff(p.output_offsets) for p in parts])
    parents = np.concatenate([p.parents for p in parts])
    return {
        "call_id": np.concatenate([np.arange(len(p.roles)) for p in parts]),
        "role": _role_names(np.concatenate([p.roles for p in parts])),
        "parent_call_id": pa.array(parents, mask=parents < 0),
        "shared_len": np.concatenate([p.shared for p in parts]),
        "context_ids": _lists(np.concatenate([p.context_ids for p in parts]), _offsets(context)),
        "output_ids": _lists(np.concatenate([p.output_ids for p in parts]), _offsets(output)),
        "output_logprobs": _lists(np.concatenate([p.output_logprobs for p in parts]), _offsets(output)),
        "spans": _spans(np.concatenate([p.versions for p in parts]), output),
        "n_context": context,
        "n_output": output,
        "n_logprobs": output,
    }


def _spans(versions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """One span a call: its whole output is of one version."""
    kind = SCHEMAS["calls"].field("spans").type
    zero = np.zeros(len(versions), np.int32)
    columns = [pa.array(versions), pa.array(zero), pa.array(lengths.astype(np.int32))]
    spans = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(np.arange(len(versions) + 1, dtype=np.int32)), spans, type=kind)


def _named(columns: dict[str, object], names: list[tuple[str, str, int]], calls: int, first: int) -> pa.Table:
    """Rows of `calls` under these (group, execution, index)."""
    each = np.repeat(np.arange(len(names)), calls)
    execution = pa.array([x for _, x, _ in names]).take(pa.array(each))
    rows = len(each)
    times = first + np.arange(rows)
    named = {
        "event_id": [f"{x}:{c}" for _, x, _ in names for c in range(calls)],
        "type": "model.called",
        "log_partition": 0,
        "log_offset": times,
        "time_us": times,
        "group_id": pa.array([g for g, _, _ in names]).take(pa.array(each)),
        "execution_id": execution,
        "relation": "extends",
        "delivered": True,
        "finish_reason": "stop",
    }
    return big_lake.fill("calls", named | columns, rows)


def lake(
    path: str, executions: int = 512, distinct: int = 64, shape: Shape = PAPER, seed: int = 0
) -> dict[str, int]:
    """Write the event tables of a lake; {table: rows}.  A commit has `distinct` executions.

    Raises ValueError as `event_tables` does.
    """
    store, rows = Store(path), dict.fromkeys(("calls", "executions", "scores", "groups"), 0)
    for tables in event_tables(executions, distinct, shape, seed):
        for name, table in tables.items():
            store.table(f"events/{name}", SCHEMAS[name]).append(table)
            rows[name] += table.num_rows
    return rows
