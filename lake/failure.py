"""Named failure points: places where a test kills or stops the process.

    HEADRACE_KILL_AT=store.after-write         SIGKILL at the first pass
    HEADRACE_KILL_AT=trainer.after-plan:3      at the third pass
    HEADRACE_STOP_AT=store.before-commit       SIGSTOP there: paused until somebody sends SIGCONT

In production neither variable is set and `reach` costs a comparison.
"""

from __future__ import annotations

import os
import signal

SIGNALS = {"HEADRACE_KILL_AT": signal.SIGKILL, "HEADRACE_STOP_AT": signal.SIGSTOP}


class _Plan:
    """What one variable asks for."""

    def __init__(self, variable: str) -> None:
        self.point, _, number = os.environ.get(variable, "").partition(":")
        self.left = int(number or 1)
        self.signal = SIGNALS[variable]

    def reach(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signal)


_plans = [plan for plan in map(_Plan, SIGNALS) if plan.point]


def reach(point: str) -> None:
    """Pass a failure point; never returns where this process is to be killed here."""
    for plan in _plans:
        plan.reach(point)
