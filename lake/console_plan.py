"""How a query is computed, a line a step: what `.explain` shows of DuckDB's plan.

    HASH_GROUP_BY    3 rows   0.003 s  Groups: #0; Aggregates: count_star()
    HASH_JOIN     9128 rows   0.002 s  Join Type: INNER; Conditions: execution_id = execution_id
      READ_PARQUET ...                 what is joined stands below it, indented

DuckDB's own picture of a plan is as wide as the list of the files that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

WRAPPERS = ("RESULT_COLLECTOR", "EXPLAIN_ANALYZE")
LEFT_OUT = ("Estimated Cardinality", "Filename(s)", "Function", "Table Index", "CTE Index", "Execution Mode")
ESTIMATE = "Estimated Cardinality"


def plan_lines(document: str, width: int) -> list[str]:
    """The lines of `explain (format json)`, or with analyze, each as wide as that at most.

    Rows and seconds are measured where the query ran; without, rows are estimated (~).
    """
    plan = json.loads(document)
    roots = plan if isinstance(plan, list) else plan["operator"]
    steps = [step for root in roots for step in _steps(root, 0)]
    titles = ["  " * depth + node["name"] for depth, node in steps]
    longest = max(map(len, titles), default=0)
    lines = [
        f"{title:{longest}}  {_numbers(node)}  {_details(node)}"
        for title, (_, node) in zip(titles, steps, strict=True)
    ]
    if isinstance(plan, dict):
        read = plan["io"]["total_bytes_read"] / 1e6
        lines.append(f"{read:.1f} MB read; seconds are those of all threads together")
    return [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]


def _steps(node: dict[str, Any], depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """A step, then those it stands on: indented where it joins several."""
    if node["name"] not in WRAPPERS:
        yield depth, node
    below = node.get("children", [])
    for child in below:
        yield from _steps(child, depth + (len(below) > 1))


def _numbers(node: dict[str, Any]) -> str:
    if "timing" in node:
        return f"{node['intermediate_rows']:>12} rows {node['timing']:8.3f} s"
    return f"{'~' + str(node.get('extra_info', {}).get(ESTIMATE, '?')):>12} rows"


def _details(node: dict[str, Any]) -> str:
    told = []
    for name, value in node.get("extra_info", {}).items():
        if name not in LEFT_OUT and value:
            told.append(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    return " ".join("; ".join(told).split())
