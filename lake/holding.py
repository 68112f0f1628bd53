"""One process at a time, in a run's folder or on a set: locks that end with their process."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lake.layout import Run


class RunBusy(RuntimeError):
    """Another command works in this folder."""


@contextmanager
def only_one(run: Run) -> Iterator[None]:
    """Hold the run's folder.  Raises RunBusy where somebody else does."""
    busy = RunBusy(f"{run.path} is in use by another `headrace run`; wait for it or stop it")
    with alone(run.path / "lock", busy):
        yield


@contextmanager
def alone(path: Path, busy: Exception) -> Iterator[None]:
    """Hold a file, on this machine; raises `busy` where another process does."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise busy from error
        yield
