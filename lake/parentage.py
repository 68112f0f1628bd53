"""Who ends with whom: a child that dies with its parent, an ancestor that orphans come back to (Linux).

Elsewhere both do nothing: a process that is left behind is then found by nobody.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Runs in a child before its program: the kernel kills it when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def told_when_parent_dies(number: signal.Signals, parent: int) -> bool:
    """Get a signal when the parent ends; False where `parent` (its pid) has ended already."""
    _prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """From now on what any descendant leaves behind is a child of this process, whatever it forked."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
