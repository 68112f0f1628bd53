"""Derived tables again for a replay: from the log alone in a fresh folder, or another set beside the first.

What does it is `ingest.rebuild`; this is how the trainer's replay asks for it, in one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ingest.derived import DerivedSet
from ingest.executors import Inline, Work
from ingest.materialise import params_of
from ingest.rebuild import derive_all
from ingest.tables import copy_all
from lake.config import Admission
from lake.layout import Run
from lake.log import Log
from lake.store import Store

Progress = Callable[[str], None]


def fresh_lake(log: Log, root: Path, say: Progress) -> Store:
    """A lake at `root` (made anew) with every event that the log holds now, and nothing derived."""
    shutil.rmtree(root, ignore_errors=True)
    store = Store(str(root))
    say(f"reading the log into a fresh lake: {root}")
    copy_all(log, store)
    return store


def current_lake(log: Log, run: Run) -> Store:
    """The run's own lake, brought up to the log.  The caller holds the run: no worker of its own is alive."""
    store = Store(run.lake)
    copy_all(log, store)
    return store


def derive_set(
    store: Store, admission: Admission, set_name: str, groups: Sequence[str], say: Progress
) -> int:
    """Derive the groups that the set lacks; how many that were."""
    params = params_of(admission, set_name)
    missing = sorted(set(groups) - DerivedSet(store, params).whole())
    if missing:
        say(f"deriving {len(missing)} groups into the set {set_name!r}")
        derive_all(store, params, missing, Work(Inline()))
    return len(missing)
