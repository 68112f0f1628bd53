"""Reading a run or a lake: every table and every model in one read-only DuckDB.

    lake = open_lake("runs/demo")
    lake.sql("select * from staleness_identity").to_arrow_table()
    lake.arrow("weights"), lake.polars("event_calls")
    open_lake("runs/demo", as_of="2h")          every table as it stood two hours ago

Names: the event tables (`event_calls`, ..., `dead_letters`) and every model under `sql/`.  Models that
a derived set keeps (`weights`, `segments`, ...) are read as they were written; others are computed.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import msgspec
import pyarrow as pa

from lake.as_of import AsOfError, moment, table_at
from lake.layout import NotARun, Run
from lake.models import EVENT_TABLES, Models, Params
from lake.questions import find
from lake.store import Store, Table

if TYPE_CHECKING:
    import polars as pl

MEMORY_LIMIT = "4GB"


class QueryError(ValueError):
    """A query that is not allowed or does not run: why, and what to do."""


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


class Lake:
    """One connection on a lake.  Use one a thread.

    Read-only: one SELECT (or EXPLAIN, DESCRIBE, SUMMARIZE) a call; no file outside the lake, no network,
    no extension, no setting.
    """

    def __init__(self, root: str, params: Params, as_of_ms: int | None = None) -> None:
        """`as_of_ms`: every table as it stood then (ms since 1970); None: as it stands now."""
        self.root, self.params, self._as_of_ms = root, params, as_of_ms
        self._gone: dict[str, str] = {}  # tables that cannot be shown as of then, and why
        self.models = Models.load()
        self._store = Store(root)
        self.con, self._given = self._connect()
        self._defined: set[str] = set(self._given)
        self._lock()

    def _connect(self) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
        """A connection on the stored tables, and the names of the models that the set keeps."""
        con = duckdb.connect()
        con.execute(f"set memory_limit = '{MEMORY_LIMIT}'")
        if "://" in self.root:  # by fsspec: DuckDB's own reader of object stores is a download
            con.register_filesystem(fsspec.core.url_to_fs(self.root)[0])
        for name, schema in EVENT_TABLES.items():
            self._show(con, name, schema, self._table(name, f"events/{name.removeprefix('event_')}"))
        return con, self._show_set(con)

    def _table(self, name: str, path: str) -> Table | None:
        """A table now, or as it stood; None where it does not, or did not yet, exist."""
        if self._as_of_ms is None:
            return self._store.existing(path)
        try:
            return table_at(self._store, path, self._as_of_ms)
        except AsOfError as error:  # told to whoever asks for this table: others can be shown
            self._gone[name] = str(error)
            return None

    def _show(
        self, con: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, table: Table | None
    ) -> None:
        files = table.files() if table is not None else []
        if name in self._gone:
            return
        if not files:
            con.register(name, schema.empty_table())
            return
        names = ", ".join("'" + f.replace("'", "''") + "'" for f in files)
        rows = f"select * from read_parquet([{names}], union_by_name = true)"
        con.execute(f"create temp view {name} as {rows}")
        columns = "select column_name from duckdb_columns() where table_name = ?"
        there = {column for (column,) in con.execute(columns, [name]).fetchall()}
        if not there.issuperset(schema.names):  # a declared column that no file has yet is null
            con.register(f"{name}_declared", schema.empty_table())
            con.execute(
                f"create or replace temp view {name} as {rows} union all by name from {name}_declared"
            )

    def _show_set(self, con: duckdb.DuckDBPyConnection) -> list[str]:
        """What the set keeps is shown, the rest is computed; then: what it kept then, empty where nothing."""
        given = []
        for name in self._store.names(f"sets/{self.params.set_name}"):
            if name not in self.models.by_name:
                continue  # kept for the workers (`derivations`)
            path = f"sets/{self.params.set_name}/{name}"
            now = self._store.existing(path)
            table = now if self._as_of_ms is None else self._table(name, path)
            if now is not None and now.files():
                self._show(con, name, now.schema, table)
                given.append(name)
        return given

    def _lock(self) -> None:
        """From here on the connection reads nothing but the lake's own files."""
        roots = {self.root} if "://" in self.root else {self.root, str(Path(self.root).absolute())}
        allowed = ", ".join("'" + root.replace("'", "''") + "/'" for root in sorted(roots))
        self.con.execute(f"set allowed_directories = [{allowed}]")
        self.con.execute("set enable_external_access = false")
        self.con.execute("set lock_configuration = true")

    def names(self) -> list[str]:
        """Everything that can stand after FROM."""
        return sorted([*EVENT_TABLES, *self.models.by_name])

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """The relation of a query: `.to_arrow_table()`, `.pl()`, `.fetchall()`, printing it shows it.

        Raises QueryError for a statement that is not a read, and for one that DuckDB refuses.
        """
        try:
            statements = duckdb.extract_statements(query)
        except duckdb.Error as error:
            raise QueryError(str(error)) from error
        kinds = [s.type for s in statements]
        readable = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(kinds) != 1 or kinds[0] not in readable:
            what = ", ".join(k.name for k in kinds) or "nothing"
            raise QueryError(f"one SELECT is allowed, this is {what}; the lake is read-only")
        try:
            self._define(query)
            return self.con.sql(query)
        except duckdb.Error as error:
            gone = [why for name, why in self._gone.items() if f" {name} " in str(error)]
            raise QueryError("; ".join(gone) or f"{error}") from error

    def _define(self, query: str) -> None:
        """Plan the views that the query names, once: planning all of them takes a second."""
        try:
            named = duckdb.get_table_names(query)
        except duckdb.Error:  # EXPLAIN and the like
            named = set(self.models.by_name)
        missing = (named & self.models.by_name.keys()) - self._defined
        if missing:
            self.models.define(self.con, self.params, given=self._given, names=missing)
            self._defined |= missing

    def arrow(self, name: str) -> pa.Table:
        """A table or model by name, as Arrow; a model in the order of its key: same events, same rows."""
        return self._whole(name).to_arrow_table()

    def report(self, name: str) -> pa.Table:
        """The answer to a question (`headrace report --list`), as Arrow, in the order of its key.

        Raises lake.questions.UnknownQuestion for a name that is none.
        """
        return self.arrow(find(self.models, name).name)

    def polars(self, name: str) -> pl.DataFrame:
        """A table or model by name, as Polars."""
        import polars as pl

        frame = pl.from_arrow(self.arrow(name))
        if not isinstance(frame, pl.DataFrame):
            raise QueryError(f"{name} has no columns")
        return frame

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query as dictionaries; sums of integers (HUGEINT in DuckDB) as integers."""
        rows = self.sql(query).to_arrow_table().to_pylist()
        return [{name: _plain(value) for name, value in row.items()} for row in rows]

    def _whole(self, name: str) -> duckdb.DuckDBPyRelation:
        if name not in self.names():
            raise QueryError(f"no table or model {name!r}; there are {', '.join(self.names())}")
        model = self.models.by_name.get(name)
        return self.sql(f"select * from {name}" + (f" order by {', '.join(model.key)}" if model else ""))

    def audit(self) -> dict[str, pa.Table]:
        """The violating rows of every audit; empty tables where all holds."""
        con, given = self._connect()
        if self._gone:
            con.close()
            raise QueryError("; ".join(self._gone.values()))
        try:
            return self.models.audit(con, self.params, given=given)
        finally:
            con.close()

    def sets(self) -> list[str]:
        """The derived sets of this lake."""
        return self._store.folders("sets")

    def close(self) -> None:
        self.con.close()


def read_params(root: str, set_name: str, otherwise: Params) -> Params:
    """The parameters that a set was made with."""
    found = Store(root).read_file(f"sets/{set_name}/params.json")
    return otherwise if found is None else msgspec.json.decode(found, type=Params)


def open_lake(path: str | Path, set_name: str = "default", as_of: str | datetime | None = None) -> Lake:
    """The lake of a run's folder, or a lake's own folder or URL, now or as it stood.

    as_of  a moment (see lake.as_of): "15m" ago, "2026-03-01T12:00Z", a datetime, "events/calls@12"
    Raises NotARun where there is neither, AsOfError for a moment that is none.
    """
    root = str(path)
    run = Run(Path(path))
    params = Params(set_name=set_name)
    if "://" not in root and run.config_file.is_file():
        root, admission = run.lake, run.config().admission
        params = Params(
            set_name=set_name, j_max=admission.j_max, seed=admission.seed, advantage=admission.advantage
        )
    elif not Store(root).folders("events"):
        raise NotARun(f"{path} is neither a run nor a lake; `headrace run demo` makes a run")
    as_of_ms = None if as_of is None else moment(as_of, Store(root))
    return Lake(root, read_params(root, set_name, params), as_of_ms)
