"""A lake of three finished groups, with one derived set or more: quick to make, and every model has rows."""

from __future__ import annotations

from pathlib import Path

from ingest.rederive import derive_set, fresh_lake
from ingest.tables import copy_all
from lake.config import Admission
from lake.log import open_log
from lake.store import Store
from tests.support.run_events import finished_group

GROUPS = [f"g-{n:06d}" for n in range(3)]


def make(folder: Path, url: str | None = None, **sets: Admission) -> str:
    """The root of the lake: `folder`/lake, or at a URL.  Other sets than the default by their names."""
    log = open_log(f"sqlite://{folder / 'log.db'}")
    for number in range(3):
        log.append(finished_group(number))
    if url is None:
        store = fresh_lake(log, folder / "lake", lambda _sentence: None)
    else:
        store = Store(url)
        copy_all(log, store)
    for name, admission in ({"default": Admission()} | sets).items():
        derive_set(store, admission, name, GROUPS, lambda _sentence: None)
    log.close()
    return store.root
