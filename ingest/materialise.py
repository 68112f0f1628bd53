"""Ready groups -> derived tables: nodes, paths, targets and weights of a group, written once.

    new event rows -> open groups -> `group_state` says complete -> derive -> sets/NAME/* -> group.ready

A derived table is a function of the event rows, the parameters and the seed: the same log gives the
same rows.  A group is written to each table at most once; after a crash between two tables the
groups that a table already has are left out there.  Which scores count is written down before the
first row, so that a worker that starts again derives and announces the same, whatever came since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lake.config import Admission
from lake.digest import table_digest
from lake.events import GroupReady
from lake.log import Partition, partition_of
from lake.models import Models, Params
from lake.store import Store, Table
from lake.tables import BYTES_AS, DEAD_LETTERS, SCHEMAS

OUTPUTS = ("nodes", "admitted", "segments", "trees", "weights")
"""The derived tables that are kept; `weights` is written last: who is there is whole."""

TRAINED = ("segments", "trees", "weights")
"""What a trainer reads of a group; `group.ready` carries the digest of these."""

STATE_TOPICS = ("calls", "executions", "scores", "groups")
RECENT_BYTES_MAX = 256 << 20
"""Call rows of open groups held in memory; beyond it they are read again from the lake."""


def params_of(admission: Admission, set_name: str = "default") -> Params:
    """The parameter row of a derived set."""
    return Params(
        set_name=set_name, j_max=admission.j_max, seed=admission.seed, advantage=admission.advantage
    )


def of_groups(table: pa.Table, groups: Sequence[str]) -> pa.Table:
    """The rows of these groups."""
    return table.filter(pc.is_in(table["group_id"], value_set=pa.array(groups, pa.string())))


def narrow(topic: str, rows: pa.Table) -> pa.Table:
    """The rows without their token lists (null instead): enough to tell what is complete."""
    for name in BYTES_AS:
        if topic == "calls":
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(
                at, rows.schema.field(at), pa.nulls(rows.num_rows, rows.schema.field(at).type)
            )
    return rows


def run_models(
    models: Models, events: Mapping[str, pa.Table], outputs: Sequence[str], params: Params
) -> dict[str, pa.Table]:
    """Models over event rows (topic -> rows; a topic that is not given is empty), on one thread."""
    con = duckdb.connect()
    try:
        con.execute("set threads = 1")
        con.execute("set memory_limit = '2GB'")
        for topic, schema in SCHEMAS.items():
            con.register(f"event_{topic}", events.get(topic, schema.empty_table()))
        con.register("dead_letters", DEAD_LETTERS.empty_table())
        return models.derive(con, outputs, params)
    finally:
        con.close()


def _scores_before(scores: pa.Table, group: str, end: int) -> pa.Table:
    """The scores without those of one group at or after an offset."""
    late = pc.and_(pc.equal(scores["group_id"], group), pc.greater_equal(scores["log_offset"], end))
    return scores.filter(pc.invert(late))


def digest_of_group(derived: Mapping[str, pa.Table], group: str) -> str:
    """sha256 over the rows that a trainer reads of one group, independent of file layout."""
    digests = [table_digest(of_groups(derived[name], [group])) for name in TRAINED]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


class SetDiffers(ValueError):
    """A derived set of that name was made with other parameters."""


class DerivedSet:
    """The kept tables of one set of parameters, and those parameters beside them.

    Raises SetDiffers where the set lies there with other parameters.
    """

    def __init__(self, store: Store, params: Params) -> None:
        self.params = params
        self._store, self._folder = store, f"sets/{params.set_name}"
        self._pin()
        self._tables: dict[str, Table] = {}
        self._have: dict[str, set[str]] = {}
        for output in OUTPUTS:
            table = store.existing(f"{self._folder}/{output}")
            if table is not None:
                self._tables[output] = table
                self._have[output] = set(table.read(columns=["group_id"])["group_id"].unique().to_pylist())

    def _pin(self) -> None:
        """The first writer of a set fixes its parameters."""
        wanted = msgspec.json.encode(self.params)
        found = self._store.read_file(f"{self._folder}/params.json")
        if found is None:
            self._store.write_file(f"{self._folder}/params.json", wanted)
        elif found != wanted:
            raise SetDiffers(
                f"{self._store.root}/{self._folder} was made with {found.decode()}, not {wanted.decode()}; "
                "give the set another name"
            )

    def intents(self) -> dict[str, int]:
        """group -> the end of the scores that it is (or was last) derived with."""
        found = self._store.read_file(f"{self._folder}/intents.json")
        return msgspec.json.decode(found or b"{}", type=dict[str, int])

    def intend(self, scores_end: Mapping[str, int]) -> None:
        """Write down, before any row, which scores count."""
        self._store.write_file(f"{self._folder}/intents.json", msgspec.json.encode(scores_end))

    def whole(self) -> set[str]:
        """The groups that every table of the set has."""
        return set.intersection(*(self._have.get(output, set()) for output in OUTPUTS))

    def append(self, derived: Mapping[str, pa.Table], groups: Sequence[str]) -> None:
        """Write the rows of these groups; a group that a table has is left as it is."""
        for output in OUTPUTS:
            if output not in self._tables:
                schema = derived[output].schema
                self._tables[output] = self._store.table(f"{self._folder}/{output}", schema)
                self._have[output] = set()
            new = [g for g in groups if g not in self._have[output]]
            self._tables[output].append(of_groups(derived[output], new))
            self._have[output].update(new)


class Materialiser:
    """Finds complete groups and writes their derived tables.

    Holds the narrow event rows of open groups, and their call rows up to RECENT_BYTES_MAX bytes.
    """

    def __init__(self, store: Store, models: Models, params: Params, score_partitions: int) -> None:
        self._models, self._params, self._score_partitions = models, params, score_partitions
        self._events = {t: store.table(f"events/{t}", SCHEMAS[t]) for t in STATE_TOPICS}
        self._set = DerivedSet(store, params)
        self._intents = self._set.intents()  # of a worker before this one
        self._state: dict[str, pa.Table] = {}
        self._recent: list[pa.Table] = []
        self._recent_bytes, self._recent_whole = 0, True
        self._restore()

    def _restore(self) -> None:
        groups = self._events["groups"].read(columns=["group_id", "type"])
        kinds = groups["type"]
        done = groups.filter(pc.equal(kinds, "group.ready"))["group_id"]
        opened = groups.filter(pc.equal(kinds, "group.dispatched"))["group_id"]
        self._open = set(opened.to_pylist()) - set(done.to_pylist())
        for topic in STATE_TOPICS:
            names = [n for n in SCHEMAS[topic].names if topic != "calls" or n not in BYTES_AS]
            rows = self._events[topic].read(sorted(self._open), names)
            for field in SCHEMAS[topic]:
                if field.name not in names:
                    rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            self._state[topic] = rows.select(SCHEMAS[topic].names)
        self._recent_whole = self._state["calls"].num_rows == 0

    def add(self, new: Mapping[str, pa.Table]) -> None:
        """Take in newly committed event rows (topic -> rows)."""
        for topic in STATE_TOPICS:
            rows = new.get(topic)
            if rows is None or not rows.num_rows:
                continue
            if topic == "groups":
                kinds, ids = rows["type"].to_pylist(), rows["group_id"].to_pylist()
                self._open |= {g for g, k in zip(ids, kinds, strict=True) if k == "group.dispatched"}
                self._open -= {g for g, k in zip(ids, kinds, strict=True) if k == "group.ready"}
            self._state[topic] = pa.concat_tables([self._state[topic], narrow(topic, rows)])
            if topic == "calls":
                self._remember(rows)

    def _remember(self, rows: pa.Table) -> None:
        if self._recent_bytes + rows.nbytes > RECENT_BYTES_MAX:
            self._recent, self._recent_bytes, self._recent_whole = [], 0, False
        if self._recent_whole:
            self._recent.append(rows)
            self._recent_bytes += rows.nbytes

    def complete(self) -> list[str]:
        """Open groups that wait for nothing more, in order of their ids."""
        if not self._open:
            return []
        state = run_models(self._models, self._state, ["group_state"], self._params)["group_state"]
        found = state.filter(state["complete"])["group_id"].to_pylist()
        return sorted(g for g in found if g in self._open)

    def _calls(self, groups: Sequence[str]) -> pa.Table:
        if self._recent_whole:
            return of_groups(pa.concat_tables([SCHEMAS["calls"].empty_table(), *self._recent]), groups)
        self._events["calls"].refresh()
        return self._events["calls"].read(groups)

    def derive(self, groups: Sequence[str], positions: Mapping[Partition, int]) -> list[GroupReady]:
        """Write the derived tables of complete groups; the events that announce them.

        positions   where the event tables stand in the log: it fixes which scores were counted
        """
        now = {g: positions["scores", partition_of(g, self._score_partitions)] for g in groups}
        ends = {g: self._intents.get(g, end) for g, end in now.items()}
        events = {t: of_groups(self._state[t], groups) for t in STATE_TOPICS if t != "calls"}
        events["calls"] = self._calls(groups)
        for group in self._intents.keys() & now.keys():
            events["scores"] = _scores_before(events["scores"], group, ends[group])
        self._set.intend(ends)
        derived = run_models(self._models, events, OUTPUTS, self._params)
        self._set.append(derived, groups)
        announced = []
        for group in groups:
            weights = of_groups(derived["weights"], [group])
            trees = of_groups(derived["trees"], [group])
            announced.append(
                GroupReady(
                    time_us=0,
                    group_id=group,
                    set_name=self._params.set_name,
                    scores_end=ends[group],
                    tokens=pc.sum(pc.list_value_length(trees["token_ids"])).as_py() or 0,
                    targets=pc.sum(weights["n_targets"]).as_py() or 0,
                    executions_valid=pc.sum(weights["valid"]).as_py() or 0,
                    digest=digest_of_group(derived, group),
                )
            )
        self._forget(groups)
        return announced

    def _forget(self, groups: Sequence[str]) -> None:
        """Closed groups leave the memory."""
        self._open -= set(groups)
        keep = sorted(self._open)
        self._state = {t: of_groups(rows, keep).combine_chunks() for t, rows in self._state.items()}
        self._recent = [part for rows in self._recent if (part := of_groups(rows, keep)).num_rows]
        self._recent_bytes = sum(rows.nbytes for rows in self._recent)
        if not self._open:
            self._recent_whole = True
