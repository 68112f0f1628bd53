"""A worker that dies between the rows and their announcement, and a score that comes in between."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ingest.materialise import Materialiser, digest_of_group, params_of
from ingest.tables import copy_all
from lake.config import Admission
from lake.events import ExecutionScored, GroupReady
from lake.log import Log, open_log
from lake.models import Models
from lake.store import Store
from tests.support.run_events import finished_group

GROUP = "g-000000"


def announce(log: Log, store: Store) -> GroupReady:
    """What a fresh worker would announce of the only group."""
    positions = copy_all(log, store).positions()
    materialiser = Materialiser(store, Models.load(), params_of(Admission()), 1)
    (ready,) = materialiser.derive(positions)
    materialiser.close()
    return ready


def test_what_is_announced_is_what_lies_in_the_lake(tmp_path: Path) -> None:
    log, store = open_log(f"sqlite://{tmp_path / 'log.db'}"), Store(str(tmp_path / "lake"))
    events = finished_group(0)
    log.append(events)
    first = announce(log, store)  # and dies before the log has it
    scored = next(e for e in events if isinstance(e, ExecutionScored))
    log.append([msgspec.structs.replace(scored, value=0.9, version=1)])
    second = announce(log, store)
    assert second == first
    kept = {}
    for name in ("segments", "trees", "weights"):
        table = store.existing(f"sets/default/{name}")
        assert table is not None
        kept[name] = table.read([GROUP])
    assert digest_of_group(kept, GROUP) == second.digest
    log.close()
