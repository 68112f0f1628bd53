"""The event rows of groups that are not ready yet, in memory, group by group.

The rows that came together stay together, sorted by group: a group is ranges of them, and nothing is
copied.  Token lists are kept as long as all of them together stay within a budget.  Beyond it the oldest
batch gives its tokens up: those of its groups are read from the lake, once, when a group is complete.

A group is open from its `group.dispatched` to its `group.ready`.  Whoever adds rows adds the rows of
`groups` first: what belongs to no open group is not kept.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.parquet import group_edges
from lake.tables import BYTES_AS, SCHEMAS

STATE_TOPICS = ("groups", "calls", "executions", "scores")
ENDINGS = {"executions": "execution.finished", "scores": "execution.scored"}


def narrow(rows: pa.Table) -> pa.Table:
    """Call rows without their token lists (null instead): enough to tell what is complete."""
    for name in BYTES_AS:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.nulls(rows.num_rows, rows.schema.field(at).type))
    return rows


def ranges(rows: pa.Table) -> Iterator[tuple[str, int, int]]:
    """(group, first row, row after the last) of each run of rows of one group."""
    names = rows["group_id"]
    for start, stop in itertools.pairwise(group_edges(rows)):
        yield names[start].as_py(), start, stop


@dataclass(eq=False)
class _Batch:
    """Rows that came together.  The groups that have rows here hold it; without them it is gone."""

    rows: pa.Table
    groups: set[str] = field(default_factory=set)
    nbytes: int = 0  # of its token lists, while they are here


@dataclass
class _Group:
    size: int = 0
    parts: dict[str, list[tuple[_Batch, int, int]]] = field(
        default_factory=lambda: {topic: [] for topic in STATE_TOPICS}
    )
    endings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    whole: bool = True  # the token lists of all of its calls are here

    def may_be_complete(self) -> bool:
        """A bound from above by counting rows; `group_state` decides."""
        return self.size > 0 and all(n >= self.size for n in self.endings.values())


class OpenGroups:
    """The open groups of a worker's lanes; batches of calls with tokens take `bytes_max` at most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._groups: dict[str, _Group] = {}
        self._held: deque[_Batch] = deque()  # batches of calls that have their tokens, oldest first
        self._touched: set[str] = set()
        self.held_bytes = 0

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, topic: str, rows: pa.Table, *, tokens: bool = True) -> None:
        """Take in event rows; with `tokens` false the rows of calls come without their lists."""
        if topic not in STATE_TOPICS or not rows.num_rows:
            return
        rows = rows.combine_chunks()
        if topic == "groups":
            self._dispatched(rows)
        batch = _Batch(rows)
        endings = np.zeros(rows.num_rows, bool)
        if topic in ENDINGS:
            endings = pc.equal(rows["type"], ENDINGS[topic]).to_numpy()
        for name, start, stop in ranges(rows):
            group = self._groups.get(name)
            if group is None:
                continue
            group.parts[topic].append((batch, start, stop))
            group.whole = group.whole and (tokens or topic != "calls")
            if topic in ENDINGS:
                group.endings[topic] += int(endings[start:stop].sum())
            batch.groups.add(name)
            self._touched.add(name)
        if topic == "calls":
            self._hold(batch, tokens=tokens)
        if topic == "groups":
            ready = rows.filter(pc.equal(rows["type"], "group.ready"))["group_id"]
            self.close(ready.unique().to_pylist())

    def _dispatched(self, rows: pa.Table) -> None:
        new = rows.filter(pc.equal(rows["type"], "group.dispatched"))
        for name, size in zip(new["group_id"].to_pylist(), new["size"].to_pylist(), strict=True):
            self._groups.setdefault(name, _Group()).size = size

    def _hold(self, batch: _Batch, *, tokens: bool) -> None:
        if not tokens:
            batch.rows = narrow(batch.rows)
        elif batch.groups:
            batch.nbytes = batch.rows.nbytes
            self.held_bytes += batch.nbytes
            self._held.append(batch)
        while self.held_bytes > self._bytes_max:
            self._let_go(self._held.popleft())

    def _let_go(self, batch: _Batch) -> None:
        """The oldest batch gives up its tokens."""
        for name in batch.groups:
            self._groups[name].whole = False
        batch.rows = narrow(batch.rows)
        self.held_bytes -= batch.nbytes
        batch.nbytes = 0

    def candidates(self) -> list[str]:
        """The groups with new rows since the last call that may be complete, in order of their ids."""
        touched, self._touched = self._touched, set()
        return sorted(g for g in touched if g in self._groups and self._groups[g].may_be_complete())

    def scores_missing(self, group: str) -> int | None:
        """How many assessments an open group still needs, at least; None for one that is not open."""
        found = self._groups.get(group)
        return None if found is None else max(0, found.size - found.endings["scores"])

    def touch(self, groups: Iterable[str]) -> None:
        """Have these groups looked at again."""
        self._touched |= set(groups)

    def whole(self, group: str) -> bool:
        """Whether the token lists of the group's calls are in memory."""
        return self._groups[group].whole

    def last_score_us(self, group: str) -> int:
        """When the group's last assessment came to lie in the log, in microseconds since 1970."""
        return int(pc.max(self.rows("scores", [group])["appended_us"]).as_py() or 0)

    def rows(self, topic: str, groups: Sequence[str]) -> pa.Table:
        """The rows of these groups."""
        parts = [p for g in groups for p in self._groups[g].parts[topic]]
        tables = [batch.rows.slice(start, stop - start) for batch, start, stop in parts]
        return pa.concat_tables([SCHEMAS[topic].empty_table(), *tables])

    def close(self, groups: Iterable[str]) -> None:
        """These groups are ready: their rows leave the memory, with the last group of each batch."""
        for name in groups:
            group = self._groups.pop(name, None)
            for batch, _, _ in group.parts["calls"] if group is not None else ():
                batch.groups.discard(name)
                if not batch.groups and batch.nbytes:
                    self._held.remove(batch)
                    self.held_bytes -= batch.nbytes
                    batch.nbytes = 0
