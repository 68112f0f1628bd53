"""What the log holds of executions, for a proxy that is started again or that has let go of one.

executions topic --> live executions (launched, not finished) and finished ones
calls, tools     --> of each live one its calls, and the results that came in
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from ingest.proxy.execution import Recall
from lake.events import ExecutionFinished, ExecutionLaunched, ModelCalled, ReplyUndelivered, ToolCalled
from lake.follow import Follower, offset_since
from lake.log import Log, Partition, partition_of

MARGIN_US = 60_000_000  # clocks of the machines that launch and of those that append may differ so much


@dataclass(frozen=True)
class Since:
    """Of which group an execution is, and a time before its first call."""

    group_id: str
    time_us: int


@dataclass(frozen=True)
class Known:
    """The executions that the log knows."""

    live: dict[str, Since] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)


def known(log: Log) -> Known:
    """Read the topic `executions`, which is light, to its present end."""
    found = Known()
    with closing(Follower(log, ("executions",))) as follower:
        for event in follower.catch_up():
            if isinstance(event, ExecutionLaunched):
                if event.execution_id not in found.finished:
                    found.live[event.execution_id] = Since(event.group_id, event.time_us)
            elif isinstance(event, ExecutionFinished):
                found.live.pop(event.execution_id, None)
                found.finished.add(event.execution_id)
    return found


def recall(log: Log, executions: Mapping[str, Since]) -> dict[str, Recall]:
    """What each of these executions made of the log until now; nothing but that is decoded.

    Reads the partitions of their groups from the time of the earliest on.  Raises LogUnavailable.
    """
    recalled = {name: Recall() for name in executions}
    if not executions:
        return recalled
    groups = {since.group_id for since in executions.values()}
    begin = min(since.time_us for since in executions.values()) - MARGIN_US
    count = log.partitions("calls")
    lanes = {
        (topic, partition_of(group, count)) for topic in ("calls", "tools", "executions") for group in groups
    }
    start: dict[Partition, int] = {lane: offset_since(log, lane, begin) for lane in lanes}
    calls: dict[str, dict[int, ModelCalled]] = {name: {} for name in executions}
    wanted = lambda record: record.key in groups  # noqa: E731
    with closing(Follower(log, ("calls", "tools", "executions"), start, wanted)) as follower:
        for event in follower.catch_up():
            found = recalled.get(getattr(event, "execution_id", ""))
            if found is None:
                continue
            if isinstance(event, ModelCalled):
                calls[event.execution_id].setdefault(event.call_id, event)
            elif isinstance(event, ToolCalled):
                found.returned.add(event.tool_call_id)
            elif isinstance(event, ReplyUndelivered):
                found.undelivered.add(event.call_id)
    for name, by_id in calls.items():
        recalled[name].calls.extend(by_id[k] for k in sorted(by_id))
    return recalled
