"""The seam between the runner and whatever carries out a task.

    Setting --(registry, by name)--> Harness --prepare(Assignment)--> Execution: run, then assess

A harness knows the base URL and the key of its execution, as any client of a model does, and nothing
of the log, of tokens or of training.  To add one, write a `Harness` and name it in `HARNESSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp

from lake.config import Rollout


class HarnessError(ValueError):
    """A harness that cannot be had: its name, and the names that are known."""


class ProxyLost(Exception):
    """The proxy went away under an execution, or refuses it: the run's fault, never the harness's."""


class HarnessCrashed(Exception):
    """A harness that ended badly by its own account: what it said is all there is to say."""


class Unscored(Exception):
    """An execution without a score, and that is no fault of anybody's: why."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all executions of a run have in common.

    model       the name under which the proxy lists the policy
    workspaces  the folder under which a harness may have one an execution
    """

    seed: int
    rollout: Rollout
    http: aiohttp.ClientSession
    model: str
    workspaces: Path


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one execution is given.

    `base_url` ends with the execution's id; a client appends `/v1/chat/completions`, or first a role
    (`/sub-agent/v1/...`).  `api_key` opens this execution and no other.
    """

    group_id: str
    execution_id: str
    index: int
    attempt: int
    task: str
    base_url: str
    api_key: str


@dataclass(frozen=True)
class Assessed:
    """A score, and what the evaluator has to say about it (free text or JSON)."""

    value: float
    detail: str = ""


class Execution(Protocol):
    """One execution of a harness: `run` once, then `assess` once."""

    async def run(self) -> str:
        """Carry out the task; `completed`, or `harness_timeout` where the harness's own limit ended it.

        Cancelled, it stops at once and leaves its workspace as it is.  Raises ProxyLost when the
        proxy went away; anything else that it raises is the harness's crash (HarnessCrashed where
        the harness said so itself).
        """

    async def assess(self) -> Assessed:
        """The score of the workspace as it stands, by the task's normal rule, however `run` ended.

        What it raises is the evaluator's crash, or Unscored: the score is then missing, not 0.
        """


class Harness(Protocol):
    """A kind of agent.  `evaluator` names who scores it, in the events."""

    evaluator: str

    def prepare(self, assignment: Assignment) -> Execution:
        """An execution that has not begun.  Raises where the task is none of this harness's."""


def _courier(setting: Setting) -> Harness:
    from ingest.courier.harness import Courier

    return Courier(setting)


def _command(setting: Setting) -> Harness:
    from ingest.rollouts.commanded import Commanded

    return Commanded(setting)


HARNESSES: dict[str, Callable[[Setting], Harness]] = {"courier": _courier, "command": _command}


def make_harness(name: str, setting: Setting) -> Harness:
    """The harness of a name.  Raises HarnessError for an unknown one."""
    if name not in HARNESSES:
        raise HarnessError(f"rollout.harness is {name!r}; known: {', '.join(sorted(HARNESSES))}")
    return HARNESSES[name](setting)
