"""Boundary dispatch: new groups enter only at a publication.

At boundary k (k = 0 before the first step, then after every mu steps) the unconsumed groups are
topped up to Q = (phi + mu) B.  As exactly B groups are consumed a step, that is Q + k mu B groups
dispatched in all.  Then E[d] = phi + (mu - 1) / 2, whatever the order of consumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake.config import Config
from schedulers.state import State


@dataclass(frozen=True)
class Dispatch:
    """Groups [first, first + count) are handed out under this version."""

    first: int
    count: int
    policy_version: int
    boundary: int


def groups_by(config: Config, boundary: int) -> int:
    """Groups dispatched in all once boundary `boundary` (from 0) has been served."""
    r = config.rollout
    return round((r.phi + r.mu) * r.groups_per_step) + boundary * r.mu * r.groups_per_step


def groups_in_run(config: Config) -> int:
    """Groups dispatched in a whole run: the boundary after the last step hands out nothing."""
    return groups_by(config, config.steps // config.rollout.mu - 1)


def decide(state: State, config: Config) -> Dispatch | None:
    """What to hand out now, or None.  A dispatch that a crash cut short is completed."""
    if state.boundary < 0 or state.published_version >= config.steps:
        return None
    have = sum(g.boundary >= 0 for g in state.groups.values())  # those of others were not handed out here
    missing = groups_by(config, state.boundary) - have
    if missing <= 0:
        return None
    return Dispatch(have, missing, state.published_version, state.boundary)
