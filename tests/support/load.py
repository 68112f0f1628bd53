"""A load of interleaved executions, as many harnesses at work at once would publish it.

Each call has 2,000 new context tokens and 500 sampled ones with log-probabilities (Zipf ids of a
vocabulary of 150,000); its execution's next call extends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lake import events as ev
from tests.support.run_events import ending

VOCABULARY = 150_000


@dataclass(frozen=True)
class Shape:
    """`groups` at once, of `size` executions, of `calls` calls."""

    groups: int = 32
    size: int = 16
    calls: int = 8
    context: int = 2000
    output: int = 500

    @property
    def tokens_of_group(self) -> int:
        return self.size * self.calls * (self.context + self.output)


class Texts:
    """Token ids and log-probabilities, cut from a pool at random places: as varied, and cheap."""

    def __init__(self, seed: int, pool: int = 1 << 20) -> None:
        self._rng = np.random.default_rng(seed)
        self._ids = (self._rng.zipf(1.3, pool) % VOCABULARY).astype("<i4")
        self._logprobs = -self._rng.exponential(0.5, pool).astype("<f4")

    def ids(self, n: int) -> bytes:
        at = int(self._rng.integers(len(self._ids) - n))
        return self._ids[at : at + n].tobytes()

    def logprobs(self, n: int) -> bytes:
        at = int(self._rng.integers(len(self._logprobs) - n))
        return self._logprobs[at : at + n].tobytes()


def call(shape: Shape, texts: Texts, group: str, execution: str, call_id: int) -> ev.ModelCalled:
    return ev.ModelCalled(
        time_us=call_id,
        group_id=group,
        execution_id=execution,
        call_id=call_id,
        role="main",
        parent_call_id=call_id - 1 if call_id else None,
        shared_len=call_id * (shape.context + shape.output),
        context_ids=texts.ids(shape.context),
        output_ids=texts.ids(shape.output),
        output_logprobs=texts.logprobs(shape.output),
        relation="extends" if call_id else "restarts",
        spans=(ev.VersionSpan(0, 0, shape.output),),
        engine="engine-0",
    )


def wave(number: int, shape: Shape, texts: Texts) -> Iterator[list[ev.Event]]:
    """`shape.groups` groups from their dispatch to their scores, their calls round robin.

    Lists of events in the order in which they are to be appended: the dispatches, one list a round of
    calls, the endings.
    """
    groups = [f"g-{number:04d}-{g:03d}" for g in range(shape.groups)]
    pairs = [(g, f"{g}.{i}", i) for i in range(shape.size) for g in groups]
    yield [
        ev.GroupDispatched(
            time_us=1, group_id=g, task="{}", size=shape.size, policy_version=0, boundary=number
        )
        for g in groups
    ]
    yield [ev.ExecutionLaunched(time_us=2, group_id=g, execution_id=e, index=i) for g, e, i in pairs]
    for call_id in range(shape.calls):
        yield [call(shape, texts, g, e, call_id) for g, e, _ in pairs]
    yield [event for g, e, i in pairs for event in ending(g, e, shape.calls, i / shape.size)]
