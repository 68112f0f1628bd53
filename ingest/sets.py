"""Derived sets of a lake, side by side: which there are, and deriving one for every complete group.

    rules = rules_of(path)                              what the set `default` of a run or lake goes by
    found = materialize(path, ["j_max=3"], "wide", Work(Inline()))
    found.new, found.held, found.waiting, found.audits

A set is named by what it does otherwise than `default` (`j_max=3,seed=1`), or as one says.  Only groups that
the set lacks are derived, in portions of bounded size; one that was killed goes on where it stood.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingest.derived import OUTPUTS, DerivedSet
from ingest.executors import Work
from ingest.materialise import params_of
from ingest.rebuild import announced_in, derive_all
from lake.config import Admission, Config, ConfigError, override
from lake.holding import alone
from lake.layout import NotARun, Run, lake_root
from lake.log import partition_of
from lake.models import Params
from lake.query import open_lake, read_params
from lake.store import Store
from lake.table import filesystem, is_local

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,=+-]{0,99}")
LANES = 16
"""Of the commits of a set that no log announces: who else writes is found by any."""
WAITING_MAX = 10
"""Groups that wait are named up to here; all are counted."""


class SetError(ValueError):
    """A set that cannot be derived so: why, what to do."""


class SetBusy(RuntimeError):
    """Another command on this machine derives this set."""


class Materialized(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a set.

    groups   complete groups of the lake
    new      of these, derived by this call; `held` those that were not, since their rows violate an audit
    waiting  the first incomplete groups and what each waits for; `incomplete` counts all
    audits   audit -> its violating rows in the whole set
    """

    lake: str
    params: Params
    groups: int
    new: int
    held: list[str]
    incomplete: int
    waiting: list[dict[str, str]]
    audits: dict[str, pa.Table]

    @property
    def sound(self) -> bool:
        return not self.held and not any(table.num_rows for table in self.audits.values())


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A set as a list shows it; `bytes` of its tables' files."""

    set: str
    j_max: int
    seed: int
    advantage: str
    roles: str
    groups: int
    held: int
    paths: int
    targets: int
    bytes: int


def rules_of(path: str) -> Admission:
    """What the set `default` goes by: a run's configuration, else what the lake's set was made with."""
    run = Run(Path(path))
    if "://" not in path and run.config_file.is_file():
        return run.config().admission
    params = read_params(path, "default", Params())
    return Admission(j_max=params.j_max, seed=params.seed, advantage=params.advantage, roles=params.roles)


def with_settings(rules: Admission, settings: Sequence[str]) -> Admission:
    """Rules with `name=value` settings.  Raises SetError for one that is no rule, or that cannot be."""
    for setting in settings:
        name = setting.partition("=")[0].strip().removeprefix("admission.")
        if name not in Admission.__struct_fields__:
            known = ", ".join(Admission.__struct_fields__)
            raise SetError(f"--set {setting}: a set is made by {known}; write for example j_max=3")
    try:
        return override(Config(admission=rules), settings).admission
    except ConfigError as error:
        raise SetError(str(error)) from error


def set_name_of(admission: Admission, run: Admission) -> str:
    """`default` for the run's own rules, else those that differ: `j_max=1,seed=3`."""

    def said(name: str) -> str:
        value = getattr(admission, name)
        return "+".join(value) if isinstance(value, tuple) else str(value)

    names = [n for n in Admission.__struct_fields__ if getattr(admission, n) != getattr(run, n)]
    return ",".join(f"{n}={said(n)}" for n in names) or "default"


def materialize(
    path: str,
    settings: Sequence[str],
    name: str | None,
    work: Work,
    tell: Callable[[str], None] = lambda _stage: None,
) -> Materialized:
    """Derive the complete groups that a set lacks, and audit the set.

    path      the folder of a run, or the folder or URL of a lake
    settings  what differs from the rules of `default`, as `j_max=3`
    name      of the set (None: from the settings)
    tell      is told each stage

    Raises SetError, SetBusy; SetDiffers where a set of that name was made otherwise; ShardFailed.
    """
    rules = rules_of(path)
    wanted = with_settings(rules, settings)
    name = name or set_name_of(wanted, rules)
    if not NAME.fullmatch(name):
        raise SetError(
            f"--as {name!r}: a set's name has up to 100 letters, digits and any of ._,=+- inside; "
            "it is a folder's name"
        )
    params, store = params_of(wanted, name), _store(path)
    with _alone(store, name):
        kept = DerivedSet(store, params)
        tell("looking for complete groups")
        complete, waiting = _states(path, name)
        missing = sorted(set(complete) - kept.whole())
        if missing:
            _check_unannounced(path, store, name, missing)
            held = derive_missing(store, params, missing, complete, work)
        else:
            held = []
    tell("audits")
    with closing(open_lake(path, name)) as lake:
        audits = lake.audit()
    return Materialized(
        lake=store.root,
        params=params,
        groups=len(complete),
        new=len(missing) - len(held),
        held=held,
        incomplete=len(waiting),
        waiting=waiting[:WAITING_MAX],
        audits=audits,
    )


def _store(path: str) -> Store:
    store = Store(lake_root(path))
    if not store.folders("events"):
        raise NotARun(f"{path} is neither a run nor a lake; `headrace run demo` makes a run")
    return store


def _states(path: str, name: str) -> tuple[dict[str, int], list[dict[str, str]]]:
    """The complete groups, each with the end of its scores as they are now; and the others."""
    with closing(open_lake(path, name)) as lake:
        states = lake.sql("select group_id, complete, waiting_for from group_state order by group_id")
        rows = states.to_arrow_table()
        ends = lake.sql(
            "select group_id, max(log_offset) + 1 as scores_end from event_scores group by group_id"
        ).to_arrow_table()
    scores_end = dict(zip(ends["group_id"].to_pylist(), ends["scores_end"].to_pylist(), strict=True))
    done = rows.filter(rows["complete"])["group_id"].to_pylist()
    open_ = rows.filter(pc.invert(rows["complete"])).select(["group_id", "waiting_for"]).to_pylist()
    return {group: scores_end.get(group, 0) for group in done}, open_


def _check_unannounced(path: str, store: Store, name: str, missing: Sequence[str]) -> None:
    """Raises SetError for a set that a run's worker writes: two writers of one set would be one too many."""
    run = "://" not in path and Run(Path(path)).config_file.is_file()
    if (run and name == "default") or any(a.set_name == name for a in announced_in(store).values()):
        raise SetError(
            f"{len(missing)} groups are missing in the set {name!r} of {store.root}, which the run's ingest "
            "worker writes and announces: `headrace ingest RUN --once` does; or give the set another name "
            "with --as"
        )


def derive_missing(
    store: Store, params: Params, groups: Sequence[str], ends: dict[str, int], work: Work
) -> list[str]:
    """Derive groups that a set lacks; those that are held back.

    ends  group -> the end of the scores that count, unless an earlier call wrote down another
    """
    claimed = {group: ends[group] for group in groups}
    DerivedSet(store, params, groups, range(LANES)).claim(claimed, lambda group: partition_of(group, LANES))
    made = derive_all(store, params, groups, work, gated=True)
    return sorted(group for group, found in made.items() if found.digest is None)


def _alone(store: Store, name: str) -> AbstractContextManager[None]:
    """One command of this machine at a time derives a set.  Raises SetBusy where another does."""
    fs, root = filesystem(store.root)
    key = hashlib.sha256(f"{root if is_local(fs) else store.root}/{name}".encode()).hexdigest()[:24]
    busy = SetBusy(f"another command derives the set {name!r} of {store.root}; wait for it or stop it")
    return alone(Path(tempfile.gettempdir()) / f"headrace-set-{key}.lock", busy)


def listed(path: str) -> list[Listed]:
    """The sets of a run or a lake."""
    store = _store(path)
    found = []
    for name in store.folders("sets"):
        params = read_params(store.root, name, params_of(rules_of(path), name))
        tables = {n: store.existing(f"sets/{name}/{n}") for n in store.names(f"sets/{name}")}
        weights, violations = tables.get(OUTPUTS[-1]), tables.get("violations")
        names = ["group_id", "n_paths", "n_targets"]
        rows = weights.read(columns=names) if weights is not None else None
        groups = set(rows["group_id"].unique().to_pylist()) if rows is not None else set()
        named = violations.read(columns=["group_id"])["group_id"].unique() if violations is not None else []
        found.append(
            Listed(
                set=name,
                j_max=params.j_max,
                seed=params.seed,
                advantage=params.advantage,
                roles=", ".join(params.roles),
                groups=len(groups),
                held=len(set(pa.array(named, pa.string()).to_pylist()) - groups),
                paths=pc.sum(rows["n_paths"]).as_py() or 0 if rows is not None else 0,
                targets=pc.sum(rows["n_targets"]).as_py() or 0 if rows is not None else 0,
                bytes=sum(e.size for table in tables.values() if table is not None for e in table.entries()),
            )
        )
    return found
