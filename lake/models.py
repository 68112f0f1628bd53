"""The SQL models under `sql/`: found, sorted and run.

A model is one file with one bare SELECT; its name is the file's name.  Its inputs are found by parsing:
other models, the event tables (`event_calls`, ..., `dead_letters`: columns in `lake.tables`), which the
caller has on the connection, and the one-row relation `params`.

    models = Models.load()
    con = duckdb.connect()
    register(con, {"event_calls": calls, "event_executions": executions, ...})
    tables = models.derive(con, ["segments", "weights", "trees"], Params(j_max=5))

The first lines of a file are its header: what a row is and why, then its key, which is unique and also
the order of the rows, so that the same input gives the same bytes:

    -- One row ...
    -- Key: group_id, execution_id
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

import duckdb
import msgspec
import pyarrow as pa

from lake.events import TOPICS, TRAINED_ROLES
from lake.tables import DEAD_LETTERS, SCHEMAS

SQL_ROOT = Path(__file__).resolve().parent.parent / "sql"
EVENT_TABLES: dict[str, pa.Schema] = {
    **{f"event_{topic}": SCHEMAS[topic] for topic in TOPICS},
    "dead_letters": DEAD_LETTERS,
}
INPUTS = frozenset({*EVENT_TABLES, "params"})

Connection = duckdb.DuckDBPyConnection
_Wanted = tuple[tuple[str, ...], frozenset[str], bool]  # outputs, given, keep


class ModelError(ValueError):
    """A model, or a set of models, that cannot be run: which file, what is wrong, what to do."""


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """What one set of derived tables was made with; the relation `params` has one row of it.

    `j_max`: admitted paths an execution, 0 for no cap.  `seed` (int64) is that of the draws.  `roles`: the
    roles whose leaves may be admitted, the first class first.
    """

    set_name: str = "default"
    j_max: int = 5
    seed: int = 0
    advantage: Literal["centred", "standardised"] = "centred"
    roles: tuple[str, ...] = TRAINED_ROLES

    def __post_init__(self) -> None:
        if self.j_max < 0:
            raise ModelError(f"params.j_max is {self.j_max}, 0 (no cap) or more is needed")
        if not self.roles or len({*self.roles} & {*TRAINED_ROLES}) < len(self.roles):
            raise ModelError(
                f"params.roles is {', '.join(self.roles) or 'empty'}; some of {', '.join(TRAINED_ROLES)} are "
                "needed, each once"
            )
        if self.advantage not in ("centred", "standardised"):
            raise ModelError(f"params.advantage is {self.advantage!r}, not 'centred' or 'standardised'")


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One file: `header` without its dashes, `key` the columns that order and identify a row."""

    name: str
    folder: str
    header: str
    key: tuple[str, ...]
    inputs: frozenset[str]
    reads: Mapping[str, int]  # how often the text names each of its inputs
    select: str


def _read(path: Path, root: Path) -> Model:
    """Raises ModelError where the file is not a header and one bare SELECT."""
    where = path.relative_to(root)
    lines = path.read_text().splitlines()
    n_header = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = [line[2:].strip() for line in lines[:n_header]]
    select = "\n".join(lines[n_header:]).strip()
    if len(header) < 2 or not header[-1].startswith("Key: "):
        raise ModelError(f"{where}: no header; begin with `-- One row ...` and end it with `-- Key: a, b`")
    try:
        statements = duckdb.extract_statements(select)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ModelError(f"{where}: {len(statements)} statements; one bare SELECT a file is needed")
        if select.endswith(";"):
            raise ModelError(f"{where}: ends in a semicolon; one bare SELECT a file is needed")
        inputs = duckdb.get_table_names(select)
    except duckdb.Error as error:
        raise ModelError(f"{where}: {error}") from error
    return Model(
        name=path.stem,
        folder=where.parent.as_posix(),
        header="\n".join(header[:-1]),
        key=tuple(part.strip() for part in header[-1].removeprefix("Key: ").split(",")),
        inputs=frozenset(inputs),
        reads=Counter(re.findall(r"\b(?:from|join)\s+(\w+)", select)),
        select=select,
    )


class Models:
    """The models of a folder, sorted so that each comes after its inputs.

    Same events, same params: the same rows in the same order, whatever the order of the input rows, the
    number of threads, or how often an event was appended.
    """

    def __init__(self, by_name: Mapping[str, Model]) -> None:
        self.by_name = dict(by_name)
        self._parsed: dict[_Wanted, list[tuple[str, duckdb.Statement]]] = {}

    @classmethod
    def load(cls, root: Path = SQL_ROOT) -> Models:
        """Parse every `*.sql` under `root` and sort them.

        Raises ModelError for a bad file, a name used twice, an unknown input and a cycle, naming files.
        """
        found: dict[str, Model] = {}
        for path in sorted(root.rglob("*.sql")):
            model = _read(path, root)
            if model.name in found or model.name in INPUTS:
                other = f"{found[model.name].folder}/" if model.name in found else "the inputs: "
                raise ModelError(f"{path.relative_to(root)}: the name is taken by {other}{model.name}")
            found[model.name] = model
        if not found:
            raise ModelError(f"{root}: no SQL models there; is the installation complete?")
        for model in found.values():
            for name in sorted(model.inputs - found.keys() - INPUTS):
                raise ModelError(
                    f"{model.folder}/{model.name}.sql: unknown input {name!r}; it is neither a model, "
                    f"nor one of {', '.join(sorted(INPUTS))}"
                )
        try:
            order = list(
                TopologicalSorter(
                    {m.name: sorted(m.inputs & found.keys()) for m in found.values()}
                ).static_order()
            )
        except CycleError as error:
            files = " <- ".join(f"{found[n].folder}/{n}.sql" for n in error.args[1])
            raise ModelError(f"a cycle of models: {files}") from error
        return cls({name: found[name] for name in order})

    def derive(
        self,
        con: Connection,
        outputs: Sequence[str],
        params: Params,
        *,
        given: Collection[str] = (),
        keep: bool = False,
    ) -> dict[str, pa.Table]:
        """The tables of `outputs`, each one chunk a column, rows in the order of the model's key.

        `given` names models that are on the connection already (stored rows of a set): they are read,
        not derived.  With `keep` the relations made on the way stay, as temporary tables.  Nothing that
        is on the connection is ever replaced.  Raises ModelError for an unknown name, for an input that
        is not on the connection and for a model that is there already.
        """
        statements = self._statements(tuple(outputs), frozenset(given), keep)
        made: list[str] = []
        try:
            _create_params(con, params)
            made.append("params")
            for name, statement in statements:
                con.execute(statement)
                made.append(name)
            return {name: self._ordered(con, name) for name in outputs}
        except duckdb.CatalogException as error:
            raise ModelError(
                f"{error}\nRegister the event tables first (lake.models.register); a connection that has "
                "kept or defined models takes no second set of them: use another connection."
            ) from error
        finally:
            if made and not keep:
                con.execute("; ".join(f"drop table temp.{name}" for name in made))

    def define(
        self,
        con: Connection,
        params: Params,
        *,
        given: Collection[str] = (),
        names: Collection[str] | None = None,
    ) -> None:
        """Models (`names`; None: every one) as temporary views, for queries by hand; nothing is computed.

        A view holds what it stands on once, as common table expressions: views of views would be planned
        as often as there are ways from one to the other.
        """
        there = con.execute("select 1 from duckdb_tables() where table_name = 'params'").fetchall()
        if not there:
            _create_params(con, params)
        elif con.execute("select * from params").fetchall() != [_row(params)]:
            raise ModelError("the connection has models with other parameters; use another connection")
        models = self._needed(list(self.by_name), given)
        for model in models:
            if names is None or model.name in names:
                con.execute(f"create or replace temp view {model.name} as {_with(model, models)}")

    def audit(self, con: Connection, params: Params, *, given: Collection[str] = ()) -> dict[str, pa.Table]:
        """The violating rows of every audit, by its name: an empty table where it holds.

        Derived tables in `given` are audited as they lie on the connection; others are derived first.
        """
        audits = [m.name for m in self.by_name.values() if m.folder == "audits"]
        return self.derive(con, sorted(audits), params, given=given)

    def describe(self) -> list[Model]:
        """All models, each after its inputs: name, folder, header, key, inputs, text."""
        return list(self.by_name.values())

    def _statements(
        self, outputs: tuple[str, ...], given: frozenset[str], keep: bool
    ) -> list[tuple[str, duckdb.Statement]]:
        """The tables to create, in order, and how; parsed once: that is an eighth of a small group's time."""
        wanted = (outputs, given, keep)
        if wanted not in self._parsed:
            needed = self._needed(outputs, given)
            uses = {n: sum(m.reads[n] for m in needed) for n in self.by_name}
            inlined = [m for m in needed if uses[m.name] == 1 and m.name not in outputs and not keep]
            texts = {
                m.name: f"create temp table {m.name} as {_with(m, inlined)}"
                for m in needed
                if m not in inlined
            }
            self._parsed[wanted] = [(n, duckdb.extract_statements(t)[0]) for n, t in texts.items()]
        return self._parsed[wanted]

    def _needed(self, outputs: Sequence[str], given: Collection[str]) -> list[Model]:
        for name in (*outputs, *given):
            if name not in self.by_name:
                raise ModelError(f"no model {name!r}; there are {', '.join(sorted(self.by_name))}")
        wanted: set[str] = set()
        ahead = [n for n in outputs if n not in given]
        while ahead:
            name = ahead.pop()
            if name not in wanted:
                wanted.add(name)
                ahead += [n for n in self.by_name[name].inputs if n in self.by_name and n not in given]
        return [m for m in self.by_name.values() if m.name in wanted]

    def _ordered(self, con: Connection, name: str) -> pa.Table:
        key = ", ".join(self.by_name[name].key)
        table: pa.Table = con.sql(f"select * from {name} order by {key}").to_arrow_table()
        return table.combine_chunks()


def _with(model: Model, inlined: Sequence[Model]) -> str:
    """The model's text with the inlined ones that it stands on as common table expressions before it."""
    used: list[Model] = []
    names = set(model.inputs)
    for other in reversed(inlined):  # from the last to the first: an input comes before its reader
        if other.name in names:
            used.insert(0, other)
            names |= other.inputs
    if not used:
        return model.select
    return f"with {', '.join(f'{m.name} as ({m.select})' for m in used)} select * from ({model.select})"


def _create_params(con: Connection, params: Params) -> None:
    con.execute(
        "create temp table params as select $1::text as set_name, $2::bigint as j_max, "
        "$3::bigint as seed, $4::text as advantage, $5::text[] as roles",
        list(_row(params)),
    )


def _row(params: Params) -> tuple[Any, ...]:
    return params.set_name, params.j_max, params.seed, params.advantage, list(params.roles)


def register(con: Connection, tables: Mapping[str, Any]) -> None:
    """Put event tables (Arrow tables, relations) on the connection, and empty ones for those not given."""
    for name in sorted(tables.keys() - EVENT_TABLES.keys()):
        raise ModelError(f"{name!r} is not an event table; these are {', '.join(EVENT_TABLES)}")
    for name, schema in EVENT_TABLES.items():
        table = tables.get(name)
        con.register(name, schema.empty_table() if table is None else table)
