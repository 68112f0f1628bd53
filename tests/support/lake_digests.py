"""Digests of every table of a lake by content, in the order of the log or of the model's key."""

from __future__ import annotations

import pyarrow as pa

from lake.digest import table_digest
from lake.models import Models
from lake.store import Store

ORDER = {"dead_letters": ("topic", "log_partition", "log_offset")}
BY_LOG = ("log_partition", "log_offset")


def _digest(table: pa.Table, order: tuple[str, ...]) -> str:
    return table_digest(table.sort_by([(name, "ascending") for name in order]))


def digests(store: Store) -> dict[str, str]:
    """name -> digest of each event table and each table of the set `default`."""
    found = {}
    for name in store.names("events"):
        table = store.existing(f"events/{name}")
        assert table is not None
        found[name] = _digest(table.read(), ORDER.get(name, BY_LOG))
    for name, model in Models.load().by_name.items():
        table = store.existing(f"sets/default/{name}")
        if table is not None:
            found[f"default/{name}"] = _digest(table.read(), model.key)
    return found
