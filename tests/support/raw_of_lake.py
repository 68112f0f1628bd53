"""The calls of a lake as somebody without delta coding would have written them down; and what to compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lake.events import ModelCalled, ids_from_bytes, logprobs_from_bytes
from lake.query import Lake
from tests.support.raw_calls import Row, calls_in

PLAIN = """
select group_id from executions
group by group_id having bool_and(attempt = 0 and status <> 'lost' and calls > 0)
intersect select group_id from calls group by group_id having bool_and(delivered and has_logprobs)
order by group_id
"""
"""Groups in which nothing happened that raw calls cannot tell: no relaunch, no answer that went nowhere."""
COMPARED = ("nodes", "leaves", "admitted", "segments", "weights", "group_statistics")


def raw_rows(lake: str | Path, executions: list[str]) -> Iterator[Row]:
    """The calls of these executions, one execution after the other, each with its whole input."""
    found = calls_in(lake)
    for execution in executions:
        whole: list[list[int]] = []
        for event in found[execution]:
            above = [] if event.parent_call_id is None else whole[event.parent_call_id][: event.shared_len]
            input_ids = above + ids_from_bytes(event.context_ids).tolist()
            whole.append(input_ids + ids_from_bytes(event.output_ids).tolist())
            yield _row(event, input_ids)


def _row(event: ModelCalled, input_ids: list[int]) -> Row:
    assert event.output_logprobs is not None
    return {
        "group_id": event.group_id,
        "execution_id": event.execution_id,
        "call_id": event.call_id,
        "role": event.role,
        "input_ids": input_ids,
        "output_ids": ids_from_bytes(event.output_ids).tolist(),
        "output_logprobs": logprobs_from_bytes(event.output_logprobs).tolist(),
        "version": event.spans[0].version if event.spans else None,
        "finish_reason": event.finish_reason,
    }


def scores_of(lake: Lake, groups: str) -> list[Row]:
    """Rows of scores of the executions of these groups (an SQL list)."""
    return lake.rows(
        "select e.execution_id, a.value as score, if(e.status = 'completed', a.assessment, e.status) status "
        "from executions e join assessments a using (execution_id) "
        f"where e.group_id in ({groups}) order by all"
    )


def derived(lake: Lake, groups: str) -> dict[str, pa.Table]:
    """What every path and weight is made of, for these groups, in the order of the models' keys."""
    found = {}
    for name in COMPARED:
        key = ", ".join(lake.models.by_name[name].key)
        rows = lake.sql(f"select * from {name} where group_id in ({groups}) order by {key}")
        found[name] = rows.to_arrow_table()
    return found
