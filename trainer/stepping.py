"""One training step, live or replayed: the same code on the same groups in the same order.

    Step(backend, ...) -> add(group) for each of B groups -> close() -> StepResult

Gradients are summed group by group, so a group trains as soon as it is ready; 1/E is applied once,
when the step closes.  Nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.backends import Backend
from trainer.loader import GroupData
from trainer.objective import Sums, add_up, by_lag, finish


@dataclass(frozen=True)
class StepResult:
    """What a step did; `statistics` are numbers by name, and `by_lag` (trainer.objective.by_lag)."""

    loss: float
    gradient_norm: float
    executions: int
    tokens: int
    targets: int
    digest: str
    statistics: dict[str, Any]


class Step:
    """Accumulates the groups of one step and moves the weights once."""

    def __init__(self, backend: Backend, learning_rate: float) -> None:
        self._backend, self._learning_rate = backend, learning_rate
        self._sums: Sums = {}
        self._sums_of: dict[str, Sums] = {}  # by group
        self._executions = self._tokens = self._targets = 0
        self.groups: list[GroupData] = []

    def add(self, group: GroupData) -> None:
        """Compute one group's gradients."""
        mine: Sums = {}
        for packed in group.micro_steps:
            self._executions += packed.executions_valid
            self._tokens += packed.tokens
            self._targets += packed.targets
            if packed.rows:
                sums = self._backend.accumulate(packed)
                self._sums, mine = add_up(self._sums, sums), add_up(mine, sums)
        self._sums_of[group.group_id] = mine
        self.groups.append(group)

    def close(self, staleness: Mapping[str, int]) -> StepResult:
        """Move the weights.  `staleness`: d by group.  With E = 0 the weights do not move.

        The lag of a target is the d of its group: what a step reads does not say who sampled a token.
        """
        norm = self._backend.step(self._executions, self._learning_rate)
        valid = sum(g.valid for g in self.groups)
        statistics = {
            "score_mean": sum(g.score_sum for g in self.groups) / valid if valid else None,
            "staleness_mean": sum(staleness.values()) / len(staleness),
            "executions_valid": valid,
            "executions_missing": sum(g.missing for g in self.groups),
            "groups_flat": sum(g.flat for g in self.groups),
            **finish(self._sums),
            "by_lag": by_lag((staleness.get(name), sums) for name, sums in self._sums_of.items()),
        }
        return StepResult(
            loss=self._sums.get("loss", 0.0) / self._executions if self._executions else 0.0,
            gradient_norm=norm,
            executions=self._executions,
            tokens=self._tokens,
            targets=self._targets,
            digest=self._backend.weights_digest(),
            statistics=statistics,
        )
