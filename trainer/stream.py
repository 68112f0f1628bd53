"""The streaming trainer: ready groups, oldest policy version first, to durable steps.

    ready -> claimed -> gradients summed -> step.planned -> weights move -> checkpoint
          -> step.committed, group.consumed -> (every mu steps) weights published

Killed anywhere and started again it reaches the same weights: before the plan nothing has moved,
after it the same groups are computed in the same order from the last committed checkpoint.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lake import failure
from lake.config import Config
from lake.events import GroupClaimed, GroupConsumed, StepCommitted, StepPlanned
from lake.layout import Run
from lake.log import Log, now_us
from lake.sglang import READY_S_MAX
from trainer import checkpoint
from trainer.backends import Backend
from trainer.ledger import Ledger, LedgerFollower
from trainer.loader import Loader
from trainer.publication import EngineAway, Publisher, PublishError
from trainer.stepping import Step, StepResult

POLL_S = 0.1
SET_NAME = "default"


def went_away(error: BaseException | None) -> bool:
    """Whether it failed because an engine ceased to answer: its next start can be tried."""
    return error is not None and (isinstance(error, EngineAway) or went_away(error.__cause__))


class StreamingTrainer:
    """Trains one run; owns its checkpoints, its published weights and its plans."""

    def __init__(
        self, run: Run, log: Log, loader: Loader, backend: Backend, *, engines: Sequence[str], name: str
    ) -> None:
        self._run, self._log = run, log
        self._config: Config = run.config()
        self._loader, self._backend, self._name = loader, backend, name
        settings, context = self._config.publication, self._config.engine.context_tokens
        self._publisher = Publisher(run, settings, engines, context_tokens=context)
        self._follower = LedgerFollower(log)
        self._ledger: Ledger = self._follower.catch_up()
        self._resume()

    @property
    def next_step(self) -> int:
        return self._ledger.next_step

    def _resume(self) -> None:
        """Go back to the last committed step; finish what a crash cut short after its commit."""
        step = self._ledger.next_step - 1
        self._run.checkpoints.mkdir(parents=True, exist_ok=True)
        if step >= 0:
            last = checkpoint.load(self._run.checkpoints, step, self._ledger.committed[step].digest)
            self._backend.load_state_dict(last.tensors)
            self._announce_consumed(step)
        self._publish_if_due()

    def _announce_consumed(self, step: int) -> None:
        plan = self._ledger.planned[step]
        missing = [g for g in plan.groups if g not in self._ledger.announced]
        self._log.append(
            [
                GroupConsumed(time_us=now_us(), group_id=g, step=step, policy_version=plan.policy_version)
                for g in missing
            ]
        )
        self._ledger.announced.update(missing)

    def _publish_if_due(self) -> None:
        """At a boundary (before the first step, then every mu steps) the engines get the weights."""
        version, mu = self._ledger.next_step, self._config.rollout.mu
        if version % mu or version in self._ledger.published:
            return
        folder = self._run.weights(version)
        if not folder.exists():
            self._backend.save(folder, extra_files_from=self._run.weights(0))
        self._publish(version)
        self._follow_until(lambda: version in self._ledger.published)

    def _publish(self, version: int) -> None:
        """Until every engine serves it: one that dies meanwhile is started again, and gets it then."""
        until = time.monotonic() + READY_S_MAX
        while True:
            try:
                self._publisher.publish(
                    self._log,
                    version=version,
                    boundary=version // self._config.rollout.mu,
                    digest=self._backend.weights_digest(),
                    score=self._backend.score,
                )
                return
            except PublishError as error:
                if not went_away(error) or time.monotonic() > until:
                    raise
                print(f"version {version} is published once more: {error}", file=sys.stderr, flush=True)

    def _follow_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._follower.follow(POLL_S)

    def train(self, steps: int) -> None:
        """Commit steps until `steps` are committed in all."""
        while self._ledger.next_step < steps:
            self._step(self._ledger.next_step)

    def _step(self, number: int) -> None:
        plan = self._ledger.planned.get(number)
        rate = plan.learning_rate if plan else self._config.optimizer.rate(number)
        step = Step(self._backend, rate)
        began, waited_s = time.monotonic(), 0.0
        if plan:
            self._loader.want(plan.groups)
            for group, digest in zip(plan.groups, plan.digests, strict=True):
                step.add(self._loader.take(group, digest))
        else:
            waited_s = self._claim_and_add(number, step)
            plan = self._plan(number, step, rate)
        failure.reach("trainer.after-plan")
        staleness = {g: self._ledger.staleness(g, number) for g in plan.groups}
        result = step.close(staleness)
        timed = {"waited_s": waited_s, "seconds": time.monotonic() - began}
        result = replace(result, statistics=result.statistics | timed)
        failure.reach("trainer.after-optimizer")
        self._commit(number, plan, result)
        failure.reach("trainer.after-commit")
        self._publish_if_due()

    def _claim_and_add(self, number: int, step: Step) -> float:
        """Take groups as they get ready, oldest policy version first, and sum their gradients.

        Returns the seconds in which no group was ready.
        """
        claimed: set[str] = set()
        waited_s = 0.0
        size = self._config.rollout.groups_per_step
        while len(claimed) < size:
            since = time.monotonic()
            self._follow_until(lambda: bool(self._ledger.next_groups(claimed)))
            waited_s += time.monotonic() - since
            free = self._ledger.next_groups(claimed)
            self._loader.want(free[: 2 * size])
            group = free[0]
            self._log.append(
                [GroupClaimed(time_us=now_us(), group_id=group, step=number, claimed_by=self._name)]
            )
            claimed.add(group)
            step.add(self._loader.take(group, self._ledger.ready[group].digest))
            failure.reach("trainer.mid-step")
        return waited_s

    def _plan(self, number: int, step: Step, rate: float) -> StepPlanned:
        plan = StepPlanned(
            time_us=now_us(),
            step=number,
            policy_version=number,
            groups=tuple(g.group_id for g in step.groups),
            digests=tuple(g.digest for g in step.groups),
            micro_steps=tuple(len(g.micro_steps) for g in step.groups),
            set_name=SET_NAME,
            seed=self._config.seed,
            learning_rate=rate,
        )
        self._log.append([plan])
        self._ledger.apply(plan)
        return plan

    def _commit(self, number: int, plan: StepPlanned, result: StepResult) -> None:
        consumed = [*self._ledger.consumed, *plan.groups]
        saved = checkpoint.save(
            self._run.checkpoints,
            number,
            self._backend.state_dict(),
            policy_version=number + 1,
            digest=result.digest,
            consumed=consumed,
        )
        failure.reach("trainer.after-checkpoint")
        committed = commit_event(number, saved, result)
        self._log.append([committed])
        self._ledger.apply(committed)
        self._announce_consumed(number)
        checkpoint.tidy(self._run.checkpoints, self._config.trainer.checkpoints_kept)

    def close(self) -> None:
        self._publisher.close()
        self._follower.close()
        self._loader.close()


def commit_event(number: int, saved: Path, result: StepResult) -> StepCommitted:
    """The event of a step whose checkpoint is durable."""
    return StepCommitted(
        time_us=now_us(),
        step=number,
        policy_version=number + 1,
        digest=result.digest,
        checkpoint=saved.name,
        loss=result.loss,
        gradient_norm=result.gradient_norm,
        executions=result.executions,
        tokens=result.tokens,
        targets=result.targets,
        statistics=json.dumps(result.statistics),
    )
