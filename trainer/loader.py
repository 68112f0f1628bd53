"""Derived tables of a group -> what a step needs of it, read in the background.

A group's rows are read once, from the files whose range of group ids holds it, and compared with
the digest that the log announced: a lake that disagrees with its log is never trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.digest import table_digest
from lake.store import Store, StoreError, Table
from trainer.packing import Packed, micro_steps, pack

TABLES = ("segments", "trees", "weights")


class LakeDisagrees(StoreError):
    """The lake's rows of a group are not those that the log announced."""


@dataclass(frozen=True)
class GroupData:
    """A group, ready to be computed."""

    group_id: str
    digest: str
    micro_steps: tuple[Packed, ...]
    score_sum: float
    valid: int  # executions with a number for a score
    missing: int
    flat: bool  # no two scores differ: nothing to learn


def of_group(table: pa.Table, group: str) -> pa.Table:
    return table.filter(pc.equal(table["group_id"], group))


def group_data(tables: Mapping[str, pa.Table], group: str, tokens_max: int) -> GroupData:
    """What a step needs of a group, from its rows of TABLES.  Raises PackingError."""
    mine = {name: of_group(tables[name], group) for name in TABLES}
    weights = mine["weights"]
    valid = np.asarray(pc.fill_null(weights["valid"], fill_value=False), dtype=bool)
    values = np.asarray(pc.fill_null(weights["value"], 0.0), dtype=float)[valid]
    packed = pack(weights, mine["segments"], mine["trees"])
    return GroupData(
        group_id=group,
        digest=hashlib.sha256("".join(table_digest(mine[name]) for name in TABLES).encode()).hexdigest(),
        micro_steps=tuple(micro_steps(packed, tokens_max)),
        score_sum=float(np.sum(values)),
        valid=int(valid.sum()),
        missing=int((~valid).sum()),
        flat=len(values) < 2 or float(np.ptp(values)) == 0.0,
    )


class Loader:
    """Reads groups of one derived set ahead of the step, on a thread of its own."""

    def __init__(self, store: Store, set_name: str, tokens_max: int) -> None:
        self._store, self._folder, self._tokens_max = store, f"sets/{set_name}", tokens_max
        self._tables: dict[str, Table] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._coming: dict[str, Future[GroupData]] = {}

    def want(self, groups: Sequence[str]) -> None:
        """Begin to read these groups, in this order."""
        for group in groups:
            if group not in self._coming:
                self._coming[group] = self._pool.submit(self._read, group)

    def take(self, group: str, digest: str | None = None) -> GroupData:
        """The group, waiting for it.  Raises LakeDisagrees where its digest is not the given one."""
        self.want([group])
        data = self._coming.pop(group).result()
        if digest is not None and data.digest != digest:
            place = f"{self._store.root}/{self._folder}"
            raise LakeDisagrees(
                f"group {group}: its rows in {place} have digest {data.digest[:12]}, the log announced "
                f"{digest[:12]}; rebuild the lake from the log"
            )
        return data

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            table = self._store.existing(f"{self._folder}/{name}")
            if table is None:
                raise LakeDisagrees(
                    f"{self._store.root}/{self._folder}/{name} is not there; is the worker running?"
                )
            self._tables[name] = table
        return self._tables[name]

    def _read(self, group: str) -> GroupData:
        rows = {}
        for name in TABLES:
            table = self._table(name)
            table.refresh()
            rows[name] = table.read([group])
        return group_data(rows, group, self._tokens_max)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
