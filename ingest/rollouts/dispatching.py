"""Which tasks of a rollout to hand out next: one group a task, oldest first, with back-pressure.  Pure.

The waterlevel is the number of groups that were handed out and are neither ready nor held back by an audit:
those of which executions are waited for, under way, or on their way through the lake.  It is topped up to
`rollout.waterlevel`; 0 hands out everything at once.  Within what is handed out
`rollout.concurrent_executions` run, the oldest group's first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ingest.rollouts.progress import Progress
from lake.config import Config
from lake.events import GroupDispatched

POLICY_VERSION = 0
"""Nothing is trained here; which weights sampled a token says the engine, call by call (`version_spans`)."""


def group_name(number: int) -> str:
    """The id of the group of task `number` (from 0)."""
    return f"g-{number:06d}"


def under_way(progress: Progress, tasks: int, held: Collection[str] = ()) -> int:
    """The waterlevel: groups of the first `tasks` that are handed out and neither ready nor `held` back."""
    names = (group_name(n) for n in range(tasks))
    return sum(g in progress.groups and g not in progress.ready and g not in held for g in names)


def next_groups(
    progress: Progress,
    tasks: Sequence[str],
    config: Config,
    *,
    now_us: int,
    held: Collection[str] = (),
) -> list[GroupDispatched]:
    """The groups to hand out now.  What a crash cut short is completed: names are numbers of tasks."""
    waiting = [n for n in range(len(tasks)) if group_name(n) not in progress.groups]
    level = config.rollout.waterlevel
    room = max(0, level - under_way(progress, len(tasks), held)) if level else len(waiting)
    return [
        GroupDispatched(
            time_us=now_us,
            group_id=group_name(number),
            task=tasks[number],
            size=config.rollout.group_size,
            policy_version=POLICY_VERSION,
            boundary=0,
        )
        for number in waiting[:room]
    ]


def is_done(progress: Progress, tasks: int, held: Collection[str] = ()) -> bool:
    """Whether every task's group is ready, or held back for good."""
    return all(g in progress.ready or g in held for g in (group_name(n) for n in range(tasks)))
