"""Event tables of many executions, made by arrays: for measuring, at the shapes of long-running agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lake.tables import SCHEMAS


def fill(name: str, columns: dict[str, object], rows: int) -> pa.Table:
    """The table's schema with these columns, null elsewhere."""
    arrays = []
    for field in SCHEMAS[name]:
        given = columns.get(field.name)
        if given is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(given, pa.Array):
            arrays.append(given.cast(field.type))
        elif isinstance(given, (str, bool, int, float)):
            arrays.append(pa.repeat(pa.scalar(given, field.type), rows))
        else:
            arrays.append(pa.array(given, field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[name])


def _lists(lengths: np.ndarray, values: pa.Array) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def structure(rng: np.random.Generator, calls: int) -> list[tuple[int | None, int, int, int, str]]:
    """(parent, shared length, context, output, role) of each call of one execution.

    One main conversation that mostly extends, with retries, edits, sub-agents and compactions.
    """
    out: list[tuple[int | None, int, int, int, str]] = []
    ends: list[int] = []
    talk, role, left = -1, "main", 0  # last call of the conversation; what it is; calls left of a sub-agent
    kept = -1
    for c in range(calls):
        n_context, n_output = int(rng.integers(20, 160)), int(rng.integers(8, 80))
        parent, shared = (talk, ends[talk]) if talk >= 0 else (None, 0)
        kind = rng.random()
        if left == 0 and role == "sub-agent":
            talk, role = kept, "main"
            parent, shared = talk, ends[talk]
        elif role == "main" and kind < 0.02 and c + 8 < calls:
            kept, role, left, parent, shared = talk, "sub-agent", int(rng.integers(3, 8)), None, 0
            if talk < 0:
                role, left = "main", 0
        elif parent is not None and kind < 0.06:  # an edited or cut output: leaves inside its parent
            start = out[parent][1]
            shared = int(rng.integers(start + 1, ends[parent] + 1))
        elif role == "main" and kind < 0.065:  # a compaction restarts from a summary
            parent, shared = None, 0
        left = max(0, left - 1)
        out.append((parent, shared, n_context, n_output, role))
        ends.append(shared + n_context + n_output)
        talk = c
    return out


def big_lake(groups: int, size: int, calls: int, seed: int = 0) -> dict[str, pa.Table]:
    """`groups` complete groups of `size` executions of `calls` calls each, all assessed."""
    rng = np.random.default_rng(seed)
    names = [(f"group-{g:05d}", f"group-{g:05d}/{i}", i) for g in range(groups) for i in range(size)]
    return {
        "event_calls": _calls(rng, names, calls),
        "event_executions": executions(names, calls),
        "event_scores": scores(rng, names),
        "event_groups": groups_of(range(groups), size),
    }


def _calls(rng: np.random.Generator, names: list[tuple[str, str, int]], calls: int) -> pa.Table:
    shapes = [structure(rng, calls) for _ in range(min(32, len(names)))]
    rows = [
        (g, x, c, *shape)
        for k, (g, x, _) in enumerate(names)
        for c, shape in enumerate(shapes[k % len(shapes)])
    ]
    group, execution, call_id, parent, shared, n_context, n_output, role = zip(*rows, strict=True)
    context, output = np.array(n_context), np.array(n_output)
    ids = pa.array(rng.integers(0, 50_000, int(context.sum() + output.sum())).astype(np.int32))
    logprobs = pa.array(-rng.exponential(1.0, int(output.sum())).astype(np.float32))
    columns = {
        "event_id": [f"{x}:{c}" for x, c in zip(execution, call_id, strict=True)],
        "type": "model.called",
        "log_partition": 0,
        "log_offset": np.arange(len(rows)),
        "time_us": np.arange(len(rows)),
        "group_id": group,
        "execution_id": execution,
        "call_id": call_id,
        "role": role,
        "parent_call_id": parent,
        "shared_len": shared,
        "context_ids": _lists(context, ids[: int(context.sum())]),
        "output_ids": _lists(output, ids[int(context.sum()) :]),
        "output_logprobs": _lists(output, logprobs),
        "relation": "extends",
        "delivered": True,
        "n_context": n_context,
        "n_output": n_output,
        "n_logprobs": n_output,
    }
    return fill("calls", columns, len(rows))


def executions(names: list[tuple[str, str, int]], calls: int) -> pa.Table:
    """`event_executions` of these (group, execution, index): launched, and completed after `calls` calls."""
    e = len(names)
    columns = {
        "group_id": [g for g, _, _ in names] * 2,
        "execution_id": [x for _, x, _ in names] * 2,
        "type": ["execution.launched"] * e + ["execution.finished"] * e,
        "event_id": [f"{x}:{kind}" for kind in ("launched", "finished") for _, x, _ in names],
        "log_partition": 0,
        "log_offset": np.arange(2 * e),
        "index": [i for _, _, i in names] + [None] * e,
        "attempt": [0] * e + [None] * e,
        "status": [None] * e + ["completed"] * e,
        "calls": [None] * e + [calls] * e,
    }
    return fill("executions", columns, 2 * e)


def scores(rng: np.random.Generator, names: list[tuple[str, str, int]]) -> pa.Table:
    """`event_scores` of these (group, execution, index): one each, uniform in [0, 1)."""
    columns = {
        "group_id": [g for g, _, _ in names],
        "execution_id": [x for _, x, _ in names],
        "event_id": [f"{x}:scored:task:0" for _, x, _ in names],
        "type": "execution.scored",
        "log_partition": 0,
        "log_offset": np.arange(len(names)),
        "assessment": "scored",
        "value": rng.random(len(names)),
        "evaluator": "task",
        "version": 0,
    }
    return fill("scores", columns, len(names))


def groups_of(numbers: Sequence[int], size: int) -> pa.Table:
    """`event_groups` of these groups, each dispatched."""
    names = [f"group-{g:05d}" for g in numbers]
    columns = {
        "group_id": names,
        "event_id": [f"{name}:dispatched" for name in names],
        "type": "group.dispatched",
        "log_partition": 0,
        "log_offset": np.array(numbers),
        "task": "{}",
        "size": size,
        "policy_version": 0,
        "boundary": 0,
    }
    return fill("groups", columns, len(names))
