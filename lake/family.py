"""Runs a command whose children end with it, and all of them with whoever started this (Linux).

    python -m lake.family COMMAND [WORD...]

A child dies with its parent where it asked for that (lake.parentage).  Children of somebody else's program
ask late, SGLang's after many seconds of imports, or never.  All are one process group, which this leads: it
is killed here when the starter has gone, even by SIGKILL, and by the starter (lake.processes) when this has.
SIGTERM goes on to the command; its exit status, or the signal that ended it, becomes ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from lake.parentage import die_with_parent, told_when_parent_dies


def _kill_all(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)  # ourselves too


def main() -> int:
    """The command's exit status; does not return where a signal ended it."""
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, _kill_all)
    if not told_when_parent_dies(signal.SIGHUP, parent):
        return 1
    child = subprocess.Popen(sys.argv[1:], preexec_fn=die_with_parent)  # noqa: PLW1509  no threads here

    def go_on(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, go_on)
    code = child.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
