"""Executions that somebody else starts: named, told to the log, and ended, from the command line.

    new     group.dispatched (the first of a group), execution.launched --> base URL and key
    finish  the proxy is told, execution.finished, execution.scored

Their groups carry boundary -1: handed out by nobody of the run.  A runner neither launches nor heals them.
One command at a time, on one machine: RUN/outside.lock is held while the log is read and appended to.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from ingest.identity import read_secret, sign
from ingest.rollouts.launching import OUTSIDE
from ingest.rollouts.progress import TOPICS, Known, Progress
from lake.events import (
    Event,
    ExecutionFinished,
    ExecutionLaunched,
    ExecutionScored,
    GroupDispatched,
    ModelCalled,
)
from lake.follow import Follower
from lake.holding import RunBusy, alone
from lake.layout import Run
from lake.log import Log, now_us
from lake.processes import ask
from lake.run_processes import address_of

EVALUATOR = "command line"
CLOSE_S = 120.0
CELL = "outside"


class OutsideError(ValueError):
    """An execution that cannot be made or ended so: which, and why."""


class ProxyRefused(RuntimeError):
    """The proxy is there and does not end the execution: what it says."""


@dataclass(frozen=True)
class Made:
    """An execution for a harness that somebody else starts."""

    group_id: str
    execution_id: str
    index: int
    size: int
    base_url: str
    api_key: str


@contextmanager
def _log_of(run: Run) -> Iterator[tuple[Log, Progress]]:
    """The run's log, and what it says; nobody else of these commands works on it meanwhile."""
    busy = RunBusy(f"{run.path} is in use by another `headrace execution`; try again")
    config = run.config()
    with alone(run.path / "outside.lock", busy), closing(run.open_log(config)) as log:
        progress = Progress()
        with closing(Follower(log, TOPICS)) as follower:
            for event in follower.catch_up():
                progress.apply(event)
        yield log, progress


def new(run: Run, task: str, *, group: str | None, size: int | None, proxy: str | None) -> Made:
    """Name an execution of a task and tell the log of it.

    task   an id of RUN/tasks.jsonl, or any other name
    group  the group it belongs to, made where there is none; without one a group of its own, named by the
           task: fix-7, then fix-7-2
    size   executions of a group that is made (default: 1)
    proxy  its URL (default: where the run's proxy listened last)
    Raises OutsideError for a group that is full, of another task or size, or the run's own.
    """
    run.config()  # or it is no run
    base = (proxy or address_of(run, "proxy") or "").rstrip("/")
    if not base:
        raise OutsideError(
            f"{run.path} has no proxy: `headrace proxy {run.path}` starts one, or give --proxy URL"
        )
    text = _task(run, task)
    with _log_of(run) as (log, progress):
        group_id = group or _free_name(task, progress)
        dispatched = progress.groups.get(group_id)
        events: list[Event] = []
        if dispatched is None:
            dispatched = GroupDispatched(
                time_us=now_us(),
                group_id=group_id,
                task=text,
                size=size or 1,
                policy_version=0,
                boundary=OUTSIDE,
            )
            events.append(dispatched)
        _check_group(dispatched, text, size)
        index = len({e.index for e in progress.of(group_id)})
        if index >= dispatched.size:
            raise OutsideError(
                f"group {group_id} has its {dispatched.size} executions; give another --group, or none"
            )
        execution_id = f"{group_id}.{index}"
        try:
            key = sign(read_secret(run), group_id, execution_id)
        except ValueError as error:
            raise OutsideError(f"--group {group_id!r}: {error}") from error
        events.append(
            ExecutionLaunched(
                time_us=now_us(), group_id=group_id, execution_id=execution_id, index=index, cell=CELL
            )
        )
        log.append(events)
    return Made(group_id, execution_id, index, dispatched.size, f"{base}/x/{execution_id}", key)


def _free_name(task: str, progress: Progress) -> str:
    """A group's name for a task, one that there is not; never one that a run would give."""
    name = re.sub(r"[^A-Za-z0-9._~:@+-]+", "-", task).strip("-")[:100] or "task"
    if re.fullmatch(r"g-\d+", name):
        name = f"x-{name}"
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(n for n in names if n not in progress.groups)


def _task(run: Run, name: str) -> str:
    """The task of this id as JSON text; one of its name alone where the run does not know it."""
    if run.tasks_file.is_file():
        with run.tasks_file.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                if json.loads(line).get("id") == name:
                    return line.removesuffix("\n")
    return msgspec.json.encode({"id": name}).decode()


def _check_group(dispatched: GroupDispatched, task: str, size: int | None) -> None:
    name = dispatched.group_id
    if dispatched.boundary != OUTSIDE:
        raise OutsideError(f"group {name} is the run's own: its runner launches it; give another --group")
    if dispatched.task != task:
        raise OutsideError(f"group {name} is of another task, {dispatched.task[:200]}; give another --group")
    if size is not None and size != dispatched.size:
        raise OutsideError(f"group {name} has {dispatched.size} executions, not {size}; leave --size out")


def finish(
    run: Run, execution_id: str, *, status: str, score: float | None, missing: str, proxy: str | None
) -> list[Event]:
    """End an execution: at the proxy, then in the log with its assessment; the events that were appended.

    Of one that has ended only the assessment is told, as a later version.  Without a live proxy the calls
    are counted in the log.  Raises OutsideError, ProxyRefused.
    """
    with _log_of(run) as (log, progress):
        known = progress.executions.get(execution_id)
        if known is None or not known.launched_us:
            raise OutsideError(f"{run.path} knows no execution {execution_id}; see headrace execution list")
        group = progress.groups.get(known.group_id)
        if group is None or group.boundary != OUTSIDE:
            raise OutsideError(f"{execution_id} is the run's own: its runner ends it")
        events: list[Event] = []
        if not known.status:
            url = proxy or address_of(run, "proxy")
            calls = _close(run, known, url) if url else None
            if calls is None:
                calls = count_calls(log, execution_id)
            events.append(
                ExecutionFinished(
                    time_us=now_us(),
                    group_id=known.group_id,
                    execution_id=execution_id,
                    status=status,
                    calls=calls,
                )
            )
        assessment = "missing" if score is None else "partial" if status == "harness_timeout" else "scored"
        events.append(
            ExecutionScored(
                time_us=now_us(),
                group_id=known.group_id,
                execution_id=execution_id,
                assessment=assessment,
                value=score,
                evaluator=EVALUATOR,
                version=known.score.version + 1 if known.score else 0,
                detail=missing,
            )
        )
        log.append(events)
    return events


def _close(run: Run, known: Known, proxy: str) -> int | None:
    """The calls that the proxy captured; None where nobody listens.  Raises ProxyRefused."""
    url = f"{proxy.rstrip('/')}/x/{known.execution_id}/close"
    key = sign(read_secret(run), known.group_id, known.execution_id)
    request = urllib.request.Request(url, b"", {"Authorization": f"Bearer {key}"})
    try:
        return int(json.loads(ask(request, CLOSE_S))["calls"])
    except urllib.error.HTTPError as error:
        raise ProxyRefused(f"{url}: {error.code}: {error.read()[:500].decode(errors='replace')}") from error
    except (urllib.error.URLError, OSError):
        return None


def count_calls(log: Log, execution_id: str) -> int:
    """The calls of an execution that the log holds: one more than the highest id."""
    with closing(Follower(log, ("calls",))) as follower:
        mine = (
            e for e in follower.catch_up() if isinstance(e, ModelCalled) and e.execution_id == execution_id
        )
        return max((e.call_id + 1 for e in mine), default=0)


def listed(run: Run) -> list[dict[str, Any]]:
    """The run's executions as rows, in the order of their launches: its own and those of others."""
    progress = Progress()
    with closing(run.open_log(run.config())) as log, closing(Follower(log, TOPICS)) as follower:
        for event in follower.catch_up():
            progress.apply(event)
    found = sorted(progress.executions.values(), key=lambda e: (e.launched_us, e.execution_id))
    return [_row(progress, execution) for execution in found]


def _row(progress: Progress, execution: Known) -> dict[str, Any]:
    group, score = progress.groups.get(execution.group_id), execution.score
    ended_us = execution.finished_us or now_us()
    return {
        "execution": execution.execution_id,
        "group": execution.group_id,
        "task": _id_of(group.task) if group else None,
        "started by": "others" if group and group.boundary == OUTSIDE else "the run",
        "status": execution.status or "live",
        "seconds": round((ended_us - execution.launched_us) / 1e6, 1) if execution.launched_us else None,
        "calls": execution.calls if execution.status else None,
        "assessment": score.assessment if score else None,
        "score": score.value if score else None,
        "detail": execution.detail or (score.detail if score else ""),
    }


def _id_of(task: str) -> Any:
    try:
        found = json.loads(task)
    except ValueError:
        return None
    return found.get("id") if isinstance(found, dict) else None


def shell_lines(variables: Mapping[str, str]) -> str:
    """Lines for a shell to `eval`."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
