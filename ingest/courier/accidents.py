"""What goes wrong on purpose, so that a demo shows what a real run shows.

Every accident is a hash of (seed, group, index), never of the clock or of a session's random state:
the same run has the same accidents, and a place that is launched again has those of its first launch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

HANG_UP_SHARE = 0.02  # of calls: the client hangs up before the answer and asks again
TIME_LIMIT_SHARE = 0.03  # of executions: stopped after 2 to 6 calls, the workspace scored as it is
CRASH_SHARE = 0.02  # of executions: their evaluator crashes
HANG_UP_S = (0.002, 0.02)  # how long such a client waits: less than an answer takes
ASK_AGAIN_S = 0.05  # and how long before it asks again: a request at once could overtake the hang-up


class EvaluatorCrashed(RuntimeError):
    """The evaluator crashed (on purpose): nobody knows the score."""


def draw(*key: object) -> float:
    """Uniform in [0, 1): a function of its arguments alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


@dataclass(frozen=True)
class Accidents:
    """The accidents of one execution.  `Accidents()` has none."""

    stop_after: int | None = None  # calls
    evaluator_crashes: bool = False
    hang_up_key: tuple[int, str, int] | None = None

    @classmethod
    def drawn(cls, seed: int, group_id: str, index: int) -> Accidents:
        """Those of place `index` of a group."""
        u = draw("time-limit", seed, group_id, index)
        return cls(
            stop_after=2 + int(u / TIME_LIMIT_SHARE * 5) if u < TIME_LIMIT_SHARE else None,
            evaluator_crashes=draw("crash", seed, group_id, index) < CRASH_SHARE,
            hang_up_key=(seed, group_id, index),
        )

    def hangs_up_after_s(self, call: int) -> float | None:
        """Seconds after which the client gives up its request number `call`; None: it waits."""
        if self.hang_up_key is None or draw("hang-up", *self.hang_up_key, call) >= HANG_UP_SHARE:
            return None
        low, high = HANG_UP_S
        return low + (high - low) * draw("patience", *self.hang_up_key, call)


NONE = Accidents()
