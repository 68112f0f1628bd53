"""The event rows of groups that are not ready yet, in memory, group by group.

Narrow rows (without tokens) of every open group; the token lists of its calls too, as long as all of
them together stay within a budget.  Beyond it the largest group gives its tokens up: they are read
from the lake once, when that group is complete.

A group is open from its `group.dispatched` to its `group.ready`.  Whoever adds rows adds the rows of
`groups` first: what belongs to no open group is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.tables import BYTES_AS, SCHEMAS

STATE_TOPICS = ("groups", "calls", "executions", "scores")
ENDINGS = {"executions": "execution.finished", "scores": "execution.scored"}


def narrow(rows: pa.Table) -> pa.Table:
    """Call rows without their token lists (null instead): enough to tell what is complete."""
    for name in BYTES_AS:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.nulls(rows.num_rows, rows.schema.field(at).type))
    return rows


def by_group(rows: pa.Table) -> dict[str, pa.Table]:
    """The rows of each group, in their order, each with buffers of its own."""
    if not rows.num_rows:
        return {}
    codes = rows["group_id"].combine_chunks().dictionary_encode()
    order = np.argsort(codes.indices.to_numpy(zero_copy_only=False), kind="stable")
    counts = np.bincount(codes.indices.to_numpy(zero_copy_only=False), minlength=len(codes.dictionary))
    ends = np.cumsum(counts)
    return {
        group: rows.take(pa.array(order[end - count : end]))
        for group, count, end in zip(codes.dictionary.to_pylist(), counts, ends, strict=True)
    }


@dataclass
class _Group:
    size: int = 0
    rows: dict[str, list[pa.Table]] = field(default_factory=lambda: {t: [] for t in STATE_TOPICS})
    endings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    token_bytes: int = 0
    whole: bool = True  # the token lists of all of its calls are here

    def may_be_complete(self) -> bool:
        """A bound from above by counting rows; `group_state` decides."""
        return self.size > 0 and all(n >= self.size for n in self.endings.values())


class OpenGroups:
    """The open groups of a worker's lanes; `held_bytes` of token rows are kept at most `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._groups: dict[str, _Group] = {}
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
        if topic == "groups":
            self._dispatched(rows)
        for name, part in by_group(rows).items():
            group = self._groups.get(name)
            if group is None:
                continue
            if topic == "calls":
                part = self._calls(group, part, tokens=tokens)  # noqa: PLW2901
            elif topic in ENDINGS:
                group.endings[topic] += pc.sum(pc.equal(part["type"], ENDINGS[topic])).as_py()
            group.rows[topic].append(part)
            self._touched.add(name)
        if topic == "groups":
            ready = rows.filter(pc.equal(rows["type"], "group.ready"))["group_id"]
            self.close(ready.unique().to_pylist())
        while self.held_bytes > self._bytes_max:
            self._let_go()

    def _dispatched(self, rows: pa.Table) -> None:
        new = rows.filter(pc.equal(rows["type"], "group.dispatched"))
        for name, size in zip(new["group_id"].to_pylist(), new["size"].to_pylist(), strict=True):
            self._groups.setdefault(name, _Group()).size = size

    def _calls(self, group: _Group, part: pa.Table, *, tokens: bool) -> pa.Table:
        group.whole = group.whole and tokens
        if not group.whole:
            return narrow(part)
        group.token_bytes += part.nbytes
        self.held_bytes += part.nbytes
        return part

    def _let_go(self) -> None:
        """The largest group gives up its tokens."""
        group = max(self._groups.values(), key=lambda g: g.token_bytes)
        group.rows["calls"] = [narrow(part) for part in group.rows["calls"]]
        self.held_bytes -= group.token_bytes
        group.token_bytes, group.whole = 0, False

    def candidates(self) -> list[str]:
        """The groups with new rows since the last call that may be complete, in order of their ids."""
        touched, self._touched = self._touched, set()
        return sorted(g for g in touched if g in self._groups and self._groups[g].may_be_complete())

    def touch(self, groups: Iterable[str]) -> None:
        """Have these groups looked at again."""
        self._touched |= set(groups)

    def whole(self, group: str) -> bool:
        """Whether the token lists of the group's calls are in memory."""
        return self._groups[group].whole

    def last_score_us(self, group: str) -> int:
        """When the group's last assessment came to lie in the log, in microseconds since 1970."""
        scores = self._groups[group].rows["scores"]
        return max((int(pc.max(part["appended_us"]).as_py()) for part in scores), default=0)

    def rows(self, topic: str, groups: Sequence[str]) -> pa.Table:
        """The rows of these groups."""
        parts = [part for g in groups for part in self._groups[g].rows[topic]]
        return pa.concat_tables([SCHEMAS[topic].empty_table(), *parts]).combine_chunks()

    def close(self, groups: Iterable[str]) -> None:
        """These groups are ready: their rows leave the memory."""
        for name in groups:
            group = self._groups.pop(name, None)
            if group is not None:
                self.held_bytes -= group.token_bytes
