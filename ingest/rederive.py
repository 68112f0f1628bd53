"""Derived tables made again: from the log alone in a fresh folder, or another set beside the first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ingest.derived import OUTPUTS, DerivedSet
from ingest.materialise import params_of, run_models
from ingest.open_groups import STATE_TOPICS
from ingest.tables import copy_all
from lake.config import Admission
from lake.layout import Run
from lake.log import Log
from lake.models import Models
from lake.store import Store
from lake.tables import SCHEMAS

GROUPS_AT_ONCE = 32
"""Bounds the memory of a derivation: the rows of so many groups at a time."""

Progress = Callable[[str], None]


def set_name_of(admission: Admission, run: Admission) -> str:
    """`default` for the run's own rules, else those that differ: `j_max=1,seed=3`."""
    names = ("j_max", "seed", "advantage")
    differing = [f"{n}={getattr(admission, n)}" for n in names if getattr(admission, n) != getattr(run, n)]
    return ",".join(differing) or "default"


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
    """Derive the groups that the set lacks, GROUPS_AT_ONCE at a time; how many that were."""
    kept = DerivedSet(store, params_of(admission, set_name))
    missing = sorted(set(groups) - kept.whole())
    if not missing:
        return 0
    say(f"deriving {len(missing)} groups into the set {set_name!r}")
    models = Models.load()
    tables = {topic: store.table(f"events/{topic}", SCHEMAS[topic]) for topic in STATE_TOPICS}
    for first in range(0, len(missing), GROUPS_AT_ONCE):
        part = missing[first : first + GROUPS_AT_ONCE]
        events = {topic: table.read(part) for topic, table in tables.items()}
        kept.append(run_models(models, events, OUTPUTS, kept.params), part)
    return len(missing)
