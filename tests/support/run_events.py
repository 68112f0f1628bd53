"""The events of small finished groups, as the processes of a run would publish them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lake import events as ev


def call(group: str, execution: str, call_id: int, rng: np.random.Generator) -> ev.ModelCalled:
    """Call `call_id` of a linear conversation: 5 new tokens each after the first, 4 sampled."""
    shared = 0 if call_id == 0 else 9 * call_id
    return ev.ModelCalled(
        time_us=call_id,
        group_id=group,
        execution_id=execution,
        call_id=call_id,
        role="main",
        parent_call_id=None if call_id == 0 else call_id - 1,
        shared_len=shared,
        context_ids=ev.ids_to_bytes(rng.integers(0, 300, 5)),
        output_ids=ev.ids_to_bytes(rng.integers(0, 300, 4)),
        output_logprobs=ev.logprobs_to_bytes(-rng.random(4)),
        relation="restarts" if call_id == 0 else "extends",
        spans=(ev.VersionSpan(0, 0, 4),),
    )


def finished_group(number: int, size: int = 4, calls: int = 3) -> list[ev.Event]:
    """A group dispatched, executed and scored (scores 0, 1/size, ...)."""
    group, rng = f"g-{number:06d}", np.random.default_rng(number)
    found: list[ev.Event] = [
        ev.GroupDispatched(time_us=1, group_id=group, task="{}", size=size, policy_version=0, boundary=0)
    ]
    for index in range(size):
        execution = f"{group}.{index}"
        found.append(ev.ExecutionLaunched(time_us=2, group_id=group, execution_id=execution, index=index))
        found += [call(group, execution, i, rng) for i in range(calls)]
        found += ending(group, execution, calls, index / size)
    return found


def ending(group: str, execution: str, calls: int, value: float) -> list[ev.Event]:
    return [
        ev.ExecutionFinished(
            time_us=3, group_id=group, execution_id=execution, status="completed", calls=calls
        ),
        ev.ExecutionScored(
            time_us=4, group_id=group, execution_id=execution, assessment="scored", value=value, evaluator="t"
        ),
    ]


def ids(found: Sequence[ev.Event]) -> list[str]:
    return [e.event_id for e in found]
