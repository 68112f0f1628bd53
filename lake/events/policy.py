"""Topics `policy`, `cells`: steps, published weights, processes and the scheduler's decisions."""

from __future__ import annotations

import math

from lake.events.base import Event, EventError, Int


class RunStarted(Event, kw_only=True, frozen=True):
    """The first event of a run: its resolved configuration as JSON, enough to replay it."""

    TYPE = "run.started"
    TOPIC = "policy"
    run: str
    config: str
    software: str  # versions, as JSON

    @property
    def event_id(self) -> str:
        return f"{self.run}:started"


class StepPlanned(Event, kw_only=True, frozen=True):
    """Everything that fixes a step, written before the weights move.

    `micro_steps[k]` is the number of micro-steps that groups[k] is cut into.
    """

    TYPE = "step.planned"
    TOPIC = "policy"
    step: Int
    policy_version: Int
    groups: tuple[str, ...]
    digests: tuple[str, ...]  # of the derived rows, one a group
    micro_steps: tuple[Int, ...]
    set_name: str
    seed: Int
    learning_rate: float

    @property
    def event_id(self) -> str:
        return f"step:{self.step}:planned"


class StepCommitted(Event, kw_only=True, frozen=True):
    """The weights moved.  `digest` is the sha256 of the new weights, `statistics` is JSON."""

    TYPE = "step.committed"
    TOPIC = "policy"
    step: Int
    policy_version: Int  # the new one
    digest: str
    checkpoint: str
    loss: float
    gradient_norm: float
    executions: Int  # E: valid executions with targets
    tokens: Int  # tokens that went through the model
    targets: Int
    statistics: str = "{}"

    @property
    def event_id(self) -> str:
        return f"step:{self.step}:committed"


class PolicyPublished(Event, kw_only=True, frozen=True):
    """The engines serve these weights from now on.

    `transport` is how they reached the engines, `took_us` how long that took, from the first request to an
    engine until it served.  `readback` is the largest difference of an engine's log-probability of the
    probe from the trainer's, or None where nobody asked.
    """

    TYPE = "policy.published"
    TOPIC = "policy"
    policy_version: Int
    boundary: Int
    weights: str
    digest: str
    transport: str = ""
    took_us: Int = 0
    readback: float | None = None

    @property
    def event_id(self) -> str:
        return f"policy:{self.policy_version}:published"

    def check_shape(self) -> None:
        if self.took_us < 0:
            raise EventError(f"{self.event_id}: took_us is {self.took_us}, at least 0 is needed")
        if self.readback is not None and not 0 <= self.readback < math.inf:
            raise EventError(f"{self.event_id}: readback is {self.readback}; finite, at least 0 is needed")


class CellEvent(Event, kw_only=True, frozen=True):
    """A process of a run changed its state: `started`, `stopped`, `died`, `role`, `heartbeat`."""

    TYPE = "cell.changed"
    TOPIC = "cells"
    cell: str
    session: str
    change: str
    detail: str = ""

    @property
    def key(self) -> str:
        """The cell's for a heartbeat: only its newest says anything."""
        return f"cell:{self.cell}:heartbeat" if self.change == "heartbeat" else self.event_id

    @property
    def event_id(self) -> str:
        return f"cell:{self.session}:{self.cell}:{self.change}:{self.time_us}"


class ScheduleDecided(Event, kw_only=True, frozen=True):
    """A decision of the scheduler, with the numbers it was taken on (JSON)."""

    TYPE = "schedule.decided"
    TOPIC = "cells"
    decision: str
    number: Int
    numbers: str

    @property
    def event_id(self) -> str:
        return f"decision:{self.decision}:{self.number}"
