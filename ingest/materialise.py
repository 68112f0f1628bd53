"""Ready groups -> derived tables: nodes, paths, targets and weights of a group, written once.

    new event rows -> open groups -> `group_state` says complete -> derive -> sets/NAME/* -> group.ready

A derived table is a function of the event rows, the parameters and the seed: the same log gives the
same rows.  Which scores of a group count is written down first (`sets/NAME/derivations`), so that a
worker that starts again, or takes over, derives and announces the same, whatever came since.  A group
whose rows violate an audit is not announced; why is kept in `sets/NAME/violations`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingest.derived import OUTPUTS, DerivedSet, of_groups
from ingest.deriving import Derivation, Deriving, said
from ingest.open_groups import STATE_TOPICS, OpenGroups
from lake.config import Admission
from lake.digest import table_digest
from lake.events import GroupReady
from lake.log import Partition, partition_of
from lake.metrics import worker_metrics
from lake.models import Models, Params
from lake.portions import portions
from lake.store import Store
from lake.tables import BYTES_AS, SCHEMAS

logger = logging.getLogger("headrace.worker")

TRAINED = ("segments", "trees", "weights")
"""What a trainer reads of a group; `group.ready` carries the digest of these."""

HELD_BYTES_MAX = 128 << 20
"""Token rows of open groups held in memory; of a group beyond it they are read from the lake, once."""
TOKENS_AT_ONCE = 8_000_000
"""Of the groups derived together: bounds the memory of a derivation."""


def params_of(admission: Admission, set_name: str = "default") -> Params:
    """The parameter row of a derived set."""
    return Params(set_name=set_name, **msgspec.structs.asdict(admission))


def scores_before(scores: pa.Table, group: str, end: int) -> pa.Table:
    """The scores without those of one group at or after an offset."""
    late = pc.and_(pc.equal(scores["group_id"], group), pc.greater_equal(scores["log_offset"], end))
    return scores.filter(pc.invert(late))


def digest_of_group(derived: Mapping[str, pa.Table], group: str) -> str:
    """sha256 over the rows that a trainer reads of one group, independent of file layout."""
    digests = [table_digest(of_groups(derived[name], [group])) for name in TRAINED]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


class Materialiser:
    """Finds complete groups of its lanes and writes their derived tables.

    Holds the event rows of open groups (see `ingest.open_groups`).
    """

    def __init__(
        self,
        store: Store,
        models: Models,
        params: Params,
        partitions: int,
        *,
        lanes: Iterable[int] | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._deriving = Deriving(models, params)
        self._params, self._partitions = params, partitions
        self._lanes = frozenset(range(partitions) if lanes is None else lanes)
        self._events = {t: store.table(f"events/{t}", SCHEMAS[t]) for t in STATE_TOPICS}
        self.open = OpenGroups(held_bytes_max)
        opened = self._restore()
        self._set = DerivedSet(store, params, opened, self._lanes)
        self._ends = self._set.derivations(opened)  # of a worker before this one
        self._held: set[str] = set()  # complete, and not to be announced

    def _restore(self) -> list[str]:
        """Take in what the lake has of groups that are not ready; their ids."""
        groups = self._events["groups"].read(columns=["group_id", "type", "log_partition"])
        groups = groups.filter(pc.is_in(groups["log_partition"], pa.array(sorted(self._lanes), pa.int32())))
        done = groups.filter(pc.equal(groups["type"], "group.ready"))["group_id"]
        opened = groups.filter(pc.equal(groups["type"], "group.dispatched"))["group_id"]
        ids = sorted(set(opened.to_pylist()) - set(done.to_pylist()))
        for topic in STATE_TOPICS if ids else ():
            names = [n for n in SCHEMAS[topic].names if topic != "calls" or n not in BYTES_AS]
            rows = self._events[topic].read(ids, names)
            for field in SCHEMAS[topic]:
                if field.name not in names:
                    rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            self.open.add(topic, rows.select(SCHEMAS[topic].names), tokens=False)
        return ids

    def add(self, new: Mapping[str, pa.Table]) -> None:
        """Take in newly committed event rows (topic -> rows)."""
        for topic in STATE_TOPICS:
            if topic in new:
                self.open.add(topic, new[topic])

    def derive(self, positions: Mapping[Partition, int]) -> list[GroupReady]:
        """Write the derived tables of the groups that are complete now; the events that announce them.

        positions   where the event tables stand in the log: it fixes which scores count

        May be called again after it raised; nothing is written twice.  The groups stay open until
        `announced`.
        """
        groups = self.open.candidates()
        ready: list[GroupReady] = []
        try:
            for portion in portions(groups, self._tokens, TOKENS_AT_ONCE):
                ready += self._derive(portion, positions)
        except BaseException:
            self.open.touch(groups)
            raise
        return ready

    def announced(self, groups: Sequence[str]) -> None:
        """The log has their `group.ready`: they leave the memory."""
        self.open.close(groups)
        for group in groups:
            self._ends.pop(group, None)
        self._set.forget(groups)
        self._held -= set(groups)
        worker_metrics().groups_held.set(len(self._held))

    def close(self) -> None:
        self._deriving.close()

    def _lane(self, group: str) -> int:
        return partition_of(group, self._partitions)

    def _tokens(self, group: str) -> int:
        calls = self.open.rows("calls", [group])
        return sum(pc.sum(calls[name]).as_py() or 0 for name in ("n_context", "n_output"))

    def _calls(self, groups: Sequence[str]) -> pa.Table:
        """Their call rows with tokens, from memory or, once, from the lake."""
        here = [g for g in groups if self.open.whole(g)]
        there = [g for g in groups if not self.open.whole(g)]
        parts = [self.open.rows("calls", here)]
        if there:
            self._events["calls"].refresh()
            parts.append(self._events["calls"].read(there))
        return pa.concat_tables(parts)

    def _derive(self, groups: Sequence[str], positions: Mapping[Partition, int]) -> list[GroupReady]:
        """Derive those of the groups that wait for nothing more: `group_state` is asked in the same run."""
        now = {g: positions["scores", self._lane(g)] for g in groups}
        ends = {g: self._ends.get(g, end) for g, end in now.items()}
        events = {t: self.open.rows(t, groups) for t in STATE_TOPICS if t != "calls"}
        events["calls"] = self._calls(groups)
        for group in groups:
            if ends[group] < now[group]:
                events["scores"] = scores_before(events["scores"], group, ends[group])
        made = self._deriving.derive(events, groups, ["group_state", *OUTPUTS])
        derived = made.tables
        state = derived.pop("group_state")
        complete = sorted(state.filter(state["complete"])["group_id"].to_pylist())
        self._hold(made, complete, made.violating - set(state["group_id"].to_pylist()))
        complete = [g for g in complete if g not in made.violating]
        new = {g: ends[g] for g in complete if g not in self._ends}
        self._ends |= self._set.claim(new, self._lane)
        others = [g for g in complete if self._ends[g] != ends[g]]  # another worker began these
        self.open.touch(others)
        mine = [g for g in complete if g not in others]
        if not mine:
            return []
        if len(mine) < len(groups):
            derived = {name: of_groups(table, mine) for name, table in derived.items()}
        self._set.append(derived, mine, self._lane)
        return [self._ready(group, derived) for group in mine]

    def _hold(self, made: Derivation, complete: Sequence[str], underivable: set[str]) -> None:
        """Keep why these groups are not announced, and say it.  With new rows they are derived again."""
        held = sorted(made.violating & {*complete, *underivable})
        self._set.hold(of_groups(made.violations, held), self._lane)
        self._held |= set(held)
        worker_metrics().groups_held.set(len(self._held))
        for group in held:
            logger.error(
                "group %s is not announced, its rows violate %s; see `headrace audit`",
                group,
                said(made.violations, group),
            )

    def _ready(self, group: str, derived: Mapping[str, pa.Table]) -> GroupReady:
        weights = of_groups(derived["weights"], [group])
        trees = of_groups(derived["trees"], [group])
        return GroupReady(
            time_us=0,
            group_id=group,
            set_name=self._params.set_name,
            scores_end=self._ends[group],
            tokens=pc.sum(pc.list_value_length(trees["token_ids"])).as_py() or 0,
            targets=pc.sum(weights["n_targets"]).as_py() or 0,
            executions_valid=pc.sum(weights["valid"]).as_py() or 0,
            digest=digest_of_group(derived, group),
        )
