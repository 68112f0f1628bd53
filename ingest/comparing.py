"""Two lakes compared by the ordered digests of their tables: the same rows, whatever the files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ingest.derived import OUTPUTS
from ingest.executors import Work
from ingest.restore import ends_in
from ingest.shards import (
    DigestShard,
    GroupsShard,
    digest_groups,
    digest_lane,
    groups_in,
    shares,
    tokens_by_group,
)
from lake.log import Partition
from lake.models import Params
from lake.store import Store
from lake.tables import SCHEMAS, app_id


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One table of two lakes: rows of each, and which parts of it differ (partitions, or groups)."""

    table: str
    rows: int
    rows_again: int
    differing: list[str]

    @property
    def equal(self) -> bool:
        return not self.differing


def compare_events(lake: Store, again: Store, work: Work) -> list[Compared]:
    """Event tables and dead letters, as far as `lake` has read the log."""
    read = ends_in(lake)
    own: dict[Partition, int] = {}
    for topic, partition in read:  # a dead letter may be ahead of its topic
        table = lake.existing(f"events/{topic}")
        own[topic, partition] = (table.offset(app_id(topic, partition)) or 0) if table is not None else 0
    parts = [(t, t, p, end) for (t, p), end in own.items()]
    parts += [("dead_letters", t, p, end) for (t, p), end in read.items()]
    shards = [
        DigestShard(lake=store.root, table=name, topic=topic, partition=partition, end=end)
        for store in (lake, again)
        for name, topic, partition, end in parts
    ]
    digests = work.do("comparing events", digest_lane, shards)
    both = list(zip(parts, digests[: len(parts)], digests[len(parts) :], strict=True))
    found = []
    for events in dict.fromkeys(name for name, *_ in parts):
        mine = [(f"{t}/{p}", here, there) for (name, t, p, _), here, there in both if name == events]
        found.append(
            Compared(
                table=f"events/{events}",
                rows=sum(here[0] for _, here, _ in mine),
                rows_again=sum(there[0] for _, _, there in mine),
                differing=[place for place, here, there in mine if here != there],
            )
        )
    return found


def compare_set(
    lake: Store,
    again: Store,
    params: Params,
    work: Work,
    *,
    groups: Sequence[str],
    pending: Collection[str],
) -> list[Compared]:
    """The tables of a derived set, group by group.

    pending   groups that a live worker may have derived and not announced: they may be there or not
    """
    folder = f"sets/{params.set_name}"
    tables = {n: lake.existing(f"{folder}/{n}") for n in ("derivations", *OUTPUTS)}
    if tables["derivations"] is None:  # a set that an older version made, or a replay, has none
        del tables["derivations"]
    tokens = tokens_by_group(again.table("events/calls", SCHEMAS["calls"]))
    shards = [
        GroupsShard(lake=store.root, params=params, groups=part, tables=tuple(tables))
        for store in (lake, again)
        for part in shares(groups, tokens)
    ]
    answers = work.do(f"comparing {params.set_name}", digest_groups, shards)
    half = len(shards) // 2
    found = []
    for name, table in tables.items():
        here = {g: d for answer in answers[:half] for g, d in answer[name].items()}
        new = {g: d for answer in answers[half:] for g, d in answer[name].items()}
        more = groups_in(table) - set(groups) - set(pending) if table is not None else set()
        found.append(
            Compared(
                table=f"{folder}/{name}",
                rows=sum(rows for rows, _ in here.values()),
                rows_again=sum(rows for rows, _ in new.values()),
                differing=[g for g in groups if here.get(g) != new.get(g)] + sorted(more),
            )
        )
    return found
