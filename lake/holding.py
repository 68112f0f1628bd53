"""One process at a time in a run's folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from lake.layout import Run


class RunBusy(RuntimeError):
    """Another command works in this folder."""


@contextmanager
def only_one(run: Run) -> Iterator[None]:
    """Hold the run's folder.  Raises RunBusy where somebody else does."""
    with (run.path / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunBusy(
                f"{run.path} is in use by another `headrace run`; wait for it or stop it"
            ) from error
        yield
