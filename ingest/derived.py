"""Derived sets as they are kept: one Delta table a model under `sets/NAME/`, each group in each once.

    sets/default/params.json     the parameters, fixed by the first writer
    sets/default/derivations     group -> the end of the scores that count, written before any other row
    sets/default/nodes, ...      the rows
    sets/default/violations      the rows of audits that keep groups from being there, once there are any

Each commit carries `lane/P`, a counter of the commits for groups of lane P: of two workers that both
believe to own a lane the later commit is refused (Fenced).  A group that a table has is left out there,
so a derivation that was broken off is finished by calling `append` again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingest.at_once import AtOnce
from lake.metrics import worker_metrics
from lake.models import Params
from lake.store import Store, Table

OUTPUTS = ("nodes", "admitted", "segments", "trees", "weights")
"""The derived tables that are kept; `weights` is written last: who is there is whole."""
DERIVATIONS = pa.schema([("group_id", pa.string()), ("scores_end", pa.int64())])
VIOLATIONS = pa.schema([("group_id", pa.string()), ("audit", pa.string()), ("row", pa.string())])
"""As the model `violations` has them: `row` is the violating row as JSON."""

LaneOf = Callable[[str], int]


def of_groups(table: pa.Table, groups: Sequence[str]) -> pa.Table:
    """The rows of these groups."""
    return table.filter(pc.is_in(table["group_id"], value_set=pa.array(groups, pa.string())))


def scores_end_in(derivations: Table, groups: Sequence[str]) -> dict[str, int]:
    """group -> the end of the scores that count, as a set's table `derivations` has it."""
    rows = derivations.read(groups)
    return dict(zip(rows["group_id"].to_pylist(), rows["scores_end"].to_pylist(), strict=True))


class SetDiffers(ValueError):
    """A derived set of that name was made with other parameters."""


def _by_group(violations: pa.Table) -> dict[str, set[tuple[str, str]]]:
    """group -> its violating rows."""
    found: dict[str, set[tuple[str, str]]] = {}
    for row in violations.to_pylist():
        found.setdefault(row["group_id"], set()).add((row["audit"], row["row"]))
    return found


class _Kept:
    """One table of the set: which groups it has, and where its lanes stand."""

    def __init__(self, name: str, table: Table, groups: Sequence[str] | None) -> None:
        self.name, self.table = name, table
        self.have: set[str] = set(table.read(groups, ["group_id"])["group_id"].unique().to_pylist())
        self._counts: dict[int, int | None] = {}

    def open_lanes(self, lanes: Iterable[int]) -> None:
        """Remember where these lanes stand now: whoever moves them from here on shuts us out."""
        for lane in lanes:
            self._counts.setdefault(lane, self.table.offset(f"lane/{lane}"))

    def append(self, rows: pa.Table, groups: Sequence[str], lane_of: LaneOf | None) -> None:
        lanes = sorted({lane_of(g) for g in groups}) if lane_of else []
        self.open_lanes(lanes)
        counts = {lane: (self._counts[lane] or 0) + 1 for lane in lanes}
        began = time.perf_counter()
        self.table.append(
            rows,
            {f"lane/{lane}": count for lane, count in counts.items()},
            {f"lane/{lane}": self._counts[lane] for lane in lanes},
        )
        self._counts |= counts
        self.have.update(groups)
        worker_metrics().committed(
            self.name, seconds=time.perf_counter() - began, rows=rows.num_rows, size_bytes=rows.nbytes
        )


class DerivedSet:
    """The kept tables of one set of parameters.

    groups   those that may be written through this object (None: any); what is known of others is
             not read
    lanes    those that this object writes for; with them (and `lane_of`) every commit is fenced

    Raises SetDiffers where the set lies there with other parameters.
    """

    def __init__(
        self,
        store: Store,
        params: Params,
        groups: Sequence[str] | None = None,
        lanes: Iterable[int] = (),
    ) -> None:
        self.params = params
        self._store, self._folder = store, f"sets/{params.set_name}"
        self._groups, self._lanes = groups, tuple(lanes)
        self._pin()
        self._kept: dict[str, _Kept] = {}
        self._at_once = AtOnce(len(OUTPUTS) - 1)
        for name in ("derivations", "violations", *OUTPUTS):
            table = store.existing(f"{self._folder}/{name}")
            if table is not None:
                self._keep(name, table)

    def _keep(self, name: str, table: Table) -> _Kept:
        self._kept[name] = _Kept(name, table, self._groups)
        self._kept[name].open_lanes(self._lanes)
        return self._kept[name]

    def _pin(self) -> None:
        """The first writer of a set fixes its parameters."""
        wanted = msgspec.json.encode(self.params)
        found = self._store.read_file(f"{self._folder}/params.json")
        if found is None:
            self._store.write_file(f"{self._folder}/params.json", wanted)
        elif (
            msgspec.json.decode(found, type=Params) != self.params
        ):  # what an older one lacks has its default
            raise SetDiffers(
                f"{self._store.root}/{self._folder} was made with {found.decode()}, not {wanted.decode()}; "
                "give the set another name"
            )

    def _of(self, name: str, schema: pa.Schema) -> _Kept:
        kept = self._kept.get(name)
        return kept or self._keep(name, self._store.table(f"{self._folder}/{name}", schema))

    def derivations(self, groups: Sequence[str]) -> dict[str, int]:
        """group -> the end of the scores that count, of those groups whose derivation was begun."""
        return scores_end_in(self._kept["derivations"].table, groups) if "derivations" in self._kept else {}

    def claim(self, scores_end: Mapping[str, int], lane_of: LaneOf) -> dict[str, int]:
        """Write down, before any row, which scores count; what stands there then.  Raises Fenced."""
        if not scores_end:
            return {}
        kept = self._of("derivations", DERIVATIONS)
        new = [g for g in scores_end if g not in kept.have]
        if new:
            rows = pa.table({"group_id": new, "scores_end": [scores_end[g] for g in new]}, DERIVATIONS)
            kept.append(rows, new, lane_of)
        there = [g for g in scores_end if g not in new]
        return {g: scores_end[g] for g in new} | (self.derivations(there) if there else {})

    def whole(self) -> set[str]:
        """The groups that the set has with all their rows (some tables may have none of a group)."""
        return set(self._kept[OUTPUTS[-1]].have) if OUTPUTS[-1] in self._kept else set()

    def append(
        self, derived: Mapping[str, pa.Table], groups: Sequence[str], lane_of: LaneOf | None = None
    ) -> None:
        """Write the rows of these groups; a group that a table has is left as it is.

        Raises Fenced for a zombie; then some tables may have the rows: they are the rightful ones.
        """

        def write(name: str) -> None:
            kept = self._of(name, derived[name].schema)
            new = [g for g in groups if g not in kept.have]
            if new:
                kept.append(of_groups(derived[name], new), new, lane_of)

        *together, last = OUTPUTS
        self._at_once.each(
            write, [(name,) for name in together]
        )  # they wait for the disk more than they work
        write(last)

    def hold(self, violations: pa.Table, lane_of: LaneOf | None = None) -> list[str]:
        """Write down why groups are held back; those of which the same is not there yet.  Raises Fenced."""
        groups = sorted(set(violations["group_id"].to_pylist()))
        if not groups:
            return []
        kept = self._of("violations", VIOLATIONS)
        there = _by_group(kept.table.read([g for g in groups if g in kept.have]))
        found = _by_group(violations)
        new = [g for g in groups if not found[g] <= there.get(g, set())]
        if new:
            kept.append(of_groups(violations, new), new, lane_of)
        return new

    def forget(self, groups: Iterable[str]) -> None:
        """These groups will not be written again."""
        for kept in self._kept.values():
            kept.have.difference_update(groups)
