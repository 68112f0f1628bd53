"""Every table again from the log alone: event tables, dead letters, derived sets; and the comparison.

    log -> lanes -> events/*           one shard a lane
           groups -> sets/NAME/*       one shard some groups, the same SQL as the live worker's
    both lakes -> ordered digests      one a partition of an event table, one a group of a derived table

The rebuilt lake lies beside the run's own; where that is lost there is nothing to compare with.  The run
may be alive: what its lake has read of the log so far is compared.  A rebuild that was broken off is gone
on with by giving it the same folder again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from ingest.comparing import Compared, compare_events, compare_set
from ingest.derived import DerivedSet, scores_end_in
from ingest.executors import Work
from ingest.materialise import params_of
from ingest.restore import ends_in
from ingest.shards import (
    DerivedGroup,
    GroupsShard,
    LaneShard,
    copy_lane,
    derive_groups,
    groups_in,
    shares,
    tokens_by_group,
)
from lake.events import TOPICS, TOPICS_BY_GROUP
from lake.holding import only_one
from lake.layout import Run
from lake.log import partition_of
from lake.models import Params
from lake.optimize import table_names
from lake.query import read_params
from lake.store import Store
from lake.table import filesystem, is_local
from lake.tables import DEAD_LETTERS, SCHEMAS, app_id

MARK = "rebuild.json"
"""In a lake that a rebuild makes, until it has taken its place: whose it is."""

Say = Callable[[str], None]


class CannotRebuild(ValueError):
    """A rebuild that cannot be where it was asked for: what is in the way, what to do."""


class Announced(msgspec.Struct, frozen=True):
    """What a group's `group.ready` says."""

    set_name: str
    scores_end: int
    digest: str


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild made.

    `announced_differing`: groups whose digest is not that of their group.ready.  `violating`: groups whose
    rows violate an audit (`sets/NAME/violations` of the rebuilt lake says how).
    """

    lake: str
    path: str
    rows: int
    seconds: float
    places: int
    tables: list[Compared]
    announced_differing: list[str]
    violating: list[str]

    @property
    def differing(self) -> list[str]:
        """The tables that differ from the lake's, and `group.ready` where a digest does."""
        ready = ["group.ready"] if self.announced_differing else []
        return [t.table for t in self.tables if not t.equal] + ready


def rebuild(
    run: Run,
    work: Work,
    *,
    into: str | None = None,
    set_names: Sequence[str] = (),
    say: Say = lambda _sentence: None,
) -> Rebuilt:
    """Make a run's lake again beside it, or at `into`, and compare the two (see the module).

    set_names   the derived sets to make (none given: all that the lake has or the log announces)

    Raises CannotRebuild, ShardFailed, LogCorrupt for a log that lacks what the lake has read.
    """
    began = time.monotonic()
    lake = Store(_absolute(run.lake))
    again = Store(_absolute(into) if into else f"{lake.root}.rebuild-{time.strftime('%Y%m%d-%H%M%S')}")
    partitions = _prepare(run, lake, again)
    say(f"rebuilding {lake.root} from its log into {again.root}")
    work.do("lanes", copy_lane, _lanes(run, lake, again, partitions))
    ready = announced_in(again)
    wrong: list[str] = []
    violating: list[str] = []
    there = bool(ends_in(lake))
    tables = compare_events(lake, again, work) if there else []
    for params in _sets(run, lake, ready, set_names):
        groups = _groups_of(lake, params.set_name, ready)
        said = {g: ready[g] for g in groups if g in ready and ready[g].set_name == params.set_name}
        kept = lake.existing(f"sets/{params.set_name}/derivations")
        ends = (
            scores_end_in(kept, groups) if kept is not None else {}
        )  # of a set that the log does not announce
        ends |= {g: a.scores_end for g, a in said.items()}
        DerivedSet(again, params, groups).claim(ends, lambda group: partition_of(group, partitions))
        made = derive_all(again, params, groups, work)
        wrong += [g for g, a in said.items() if made[g].digest != a.digest]
        violating += [g for g, found in made.items() if found.violations]
        if there:
            tables += compare_set(lake, again, params, work, groups=groups, pending=pending_in(again))
    return Rebuilt(
        lake=lake.root,
        path=again.root,
        rows=rows_in(again),
        seconds=time.monotonic() - began,
        places=len(work.executor.places),
        tables=tables,
        announced_differing=sorted(wrong),
        violating=sorted(set(violating)),
    )


def rows_in(store: Store) -> int:
    """The rows of all tables of a lake."""
    tables = [store.existing(name) for name in table_names(store)]
    return sum(entry.rows for table in tables if table is not None for entry in table.entries())


def check_comparable(run: Run) -> None:
    """Raise CannotRebuild where a run has no lake yet that another could be compared with."""
    if not ends_in(Store(run.lake)):
        raise CannotRebuild(f"{run.lake} holds no events: nothing to compare; leave --check out to build it")


def _absolute(root: str) -> str:
    """A path as every process and node finds it."""
    return root if "://" in root else os.path.abspath(root)


def _prepare(run: Run, lake: Store, again: Store) -> int:
    """Make the empty tables, so that no two shards make one; the partitions of the log."""
    config = run.config()
    mark = msgspec.json.encode({"run": str(run.path.absolute()), "log": run.log_url(config)})
    if again.root == lake.root:
        raise CannotRebuild(f"{again.root} is the run's own lake; leave --into out, or give another folder")
    found = again.read_file(MARK)
    fs, path = filesystem(again.root)
    fs.invalidate_cache()
    if found not in (None, mark) or (found is None and fs.exists(path) and fs.ls(path)):
        raise CannotRebuild(
            f"{again.root} holds {found.decode() if found else 'something else'}; give an empty folder, "
            "or that of a rebuild of this run that was broken off"
        )
    log = run.open_log(config)
    try:
        partitions = log.partitions("calls")
    finally:
        log.close()
    again.write_file(MARK, mark)
    for topic in TOPICS:
        again.table(f"events/{topic}", SCHEMAS[topic])
    again.table("events/dead_letters", DEAD_LETTERS)
    return partitions


def _lanes(run: Run, lake: Store, again: Store, partitions: int) -> list[LaneShard]:
    config = run.config()
    tables = {t: lake.existing(f"events/{t}") for t in TOPICS}
    shards = []
    for lane in range(partitions):
        topics = [t for t in TOPICS if t in TOPICS_BY_GROUP or lane == 0]
        read = {t: table.offset(app_id(t, lane)) for t in topics if (table := tables[t]) is not None}
        shards.append(
            LaneShard(
                log_url=run.log_url(config),
                blobs=run.blobs(config),
                lake=again.root,
                lane=lane,
                ends={t: end for t, end in read.items() if end},
            )
        )
    return shards


# ------------------------------------------------------------------------------- derived sets
def announced_in(store: Store) -> dict[str, Announced]:
    """group -> what its first `group.ready` says."""
    names = ["group_id", "type", "log_offset", "set_name", "scores_end", "digest"]
    rows = store.table("events/groups", SCHEMAS["groups"]).read(columns=names)
    rows = rows.filter(pc.equal(rows["type"], "group.ready")).sort_by([("log_offset", "descending")])
    columns = (rows[n].to_pylist() for n in ("group_id", "set_name", "scores_end", "digest"))
    return {group: Announced(*rest) for group, *rest in zip(*columns, strict=True)}


def pending_in(store: Store) -> set[str]:
    """The groups that are dispatched and not ready: a worker may have derived them and not said so."""
    rows = store.table("events/groups", SCHEMAS["groups"]).read(columns=["group_id", "type"])
    of = {
        kind: set(rows.filter(pc.equal(rows["type"], kind))["group_id"].to_pylist())
        for kind in ("group.dispatched", "group.ready")
    }
    return of["group.dispatched"] - of["group.ready"]


def _sets(run: Run, lake: Store, ready: dict[str, Announced], names: Sequence[str]) -> list[Params]:
    """The parameters of each set: those beside the lake's tables, else the run's own."""
    found = sorted({*lake.folders("sets"), *(a.set_name for a in ready.values())})
    unknown = [name for name in names if name not in found]
    if unknown:
        raise CannotRebuild(f"no set {', '.join(unknown)}; the run has {', '.join(found) or 'none'}")
    otherwise = run.config().admission
    return [read_params(lake.root, n, params_of(otherwise, n)) for n in found if not names or n in names]


def _groups_of(lake: Store, set_name: str, ready: dict[str, Announced]) -> list[str]:
    """The groups of a set: those that the log announces in it; of a set made later, those that it has."""
    announced = [group for group, a in ready.items() if a.set_name == set_name]
    table = None if announced else lake.existing(f"sets/{set_name}/weights")
    return sorted(announced) if table is None else sorted(groups_in(table))


def derive_all(
    store: Store, params: Params, groups: Sequence[str], work: Work, *, gated: bool = False
) -> dict[str, DerivedGroup]:
    """Derive groups into a set; what became of each.

    gated  hold back those that violate an audit; else they are written all the same (they were announced)
    """
    tokens = tokens_by_group(store.table("events/calls", SCHEMAS["calls"]))
    shards = [
        GroupsShard(lake=_absolute(store.root), params=params, groups=part, gated=gated)
        for part in shares(groups, tokens)
    ]
    answers = work.do(f"set {params.set_name}", derive_groups, shards)
    return {group: found for answer in answers for group, found in answer.items()}


# ----------------------------------------------------------------------------- taking its place
def replace(run: Run, rebuilt: Rebuilt) -> str:
    """Put a rebuilt lake in the place of the run's own; where that lies from now on.

    Raises RunBusy while the run is alive, CannotRebuild where the lake is no folder of this machine.
    """
    if not is_local(filesystem(rebuilt.lake)[0]) or not is_local(filesystem(rebuilt.path)[0]):
        raise CannotRebuild(f"{rebuilt.lake} is no folder of this machine; set lake={rebuilt.path} instead")
    aside = f"{rebuilt.lake}.replaced-{time.strftime('%Y%m%d-%H%M%S')}"
    with only_one(run):
        Path(rebuilt.path, MARK).unlink()
        if os.path.exists(rebuilt.lake):
            os.rename(rebuilt.lake, aside)
        os.rename(rebuilt.path, rebuilt.lake)
    return aside


def discard(rebuilt: Rebuilt) -> None:
    """Remove a rebuilt lake."""
    fs, path = filesystem(rebuilt.path)
    fs.invalidate_cache()  # listings from before it was built, and other processes built it
    fs.rm(path, recursive=True)
