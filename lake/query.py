"""Reading a run or a lake: every table and every model in one read-only DuckDB.

    lake = open_lake("runs/demo")
    lake.sql("select * from staleness_identity").to_arrow_table()
    lake.arrow("weights"), lake.polars("event_calls"), lake.pandas("progress")
    open_lake("runs/demo", as_of="2h")          every table as it stood two hours ago
    open_lake("runs/demo", memory="2GB", timeout_s=60)

Names: the event tables (`event_calls`, ..., `dead_letters`) and every model under `sql/`.  Models that
a derived set keeps (`weights`, `segments`, ...) are read as they were written; others are computed.
All tables are those of one moment, that of the opening.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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
from lake.query_errors import QueryError, QueryStopped, said
from lake.questions import find
from lake.read_only import Read, check
from lake.sql_text import identifier, quoted
from lake.store import Store, Table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["Lake", "QueryError", "QueryStopped", "open_lake", "read_params"]

MEMORY = "50%"  # of what this machine, or its container, has
SPILL_SHARE = 0.5  # of what is free on the disk of temporary files
OPENED_AT_ONCE = 8  # tables: each takes several requests to an object store
BATCH_ROWS = 2048  # of a result that is read as it comes: one vector of DuckDB
Shape = Callable[[Sequence[tuple[str, str, Any]]], str]
"""A SELECT list for columns, each a reference in SQL, its name and its DuckDB type."""


def plain(value: Any) -> Any:
    """A sum of integers (HUGEINT in DuckDB, a decimal in Arrow) as an integer."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


class Lake:
    """One connection on a lake.  Use one a thread; `interrupt` alone may come from another.

    Read-only: one SELECT (or EXPLAIN, DESCRIBE, SUMMARIZE, SHOW) a call; no file, no network, no extension,
    no setting.
    """

    def __init__(
        self,
        root: str,
        params: Params,
        as_of_ms: int | None = None,
        *,
        memory: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """`as_of_ms`: every table as it stood then (ms since 1970); None: now.  The others: see open_lake."""
        self.root, self.params, self._as_of_ms = root, params, as_of_ms
        self._memory, self._timeout_s = memory or MEMORY, timeout_s or 0.0
        self._gone: dict[str, str] = {}  # tables that cannot be shown as of then, and why
        self.models = Models.load()
        self._store = Store(root)
        self._stored: dict[str, tuple[pa.Schema, list[str]]] = {}  # columns and files of what is stored
        self._given = self._read_tables()
        self._spill = Path(tempfile.gettempdir()) / f"headrace-sql-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.con = self._connect()
        self._parser = self.con.cursor()
        self._shown: set[str] = set()  # names that are on the connection: those that were asked for
        self._lock()

    def _read_tables(self) -> list[str]:
        """Find the files of every table; the names of the models that the set keeps.

        What the set keeps is shown, the rest is computed; as of a moment: what it kept then, empty where
        nothing.
        """
        kept = [n for n in self._store.names(f"sets/{self.params.set_name}") if n in self.models.by_name]
        with ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
            events = pool.map(
                self._files, EVENT_TABLES, [f"events/{n.removeprefix('event_')}" for n in EVENT_TABLES]
            )
            ours = pool.map(self._kept_files, kept)
            for (name, schema), files in zip(EVENT_TABLES.items(), events, strict=True):
                self._stored[name] = schema, files
            found = {name: table for name, table in zip(kept, ours, strict=True) if table is not None}
        self._stored |= found
        return list(found)

    def _files(self, name: str, path: str) -> list[str]:
        table = self._table(name, path)
        return [] if table is None else table.files()

    def _kept_files(self, name: str) -> tuple[pa.Schema, list[str]] | None:
        """Of a model that the set keeps: its columns, and its files as of the moment."""
        path = f"sets/{self.params.set_name}/{name}"
        now = self._store.existing(path)
        files = now.files() if now is not None else []
        if now is None or not files:
            return None
        return now.schema, files if self._as_of_ms is None else self._files(name, path)

    def _table(self, name: str, path: str) -> Table | None:
        """A table now, or as it stood; None where it does not, or did not yet, exist."""
        if self._as_of_ms is None:
            return self._store.existing(path)
        try:
            return table_at(self._store, path, self._as_of_ms)
        except AsOfError as error:  # told to whoever asks for this table: others can be shown
            self._gone[name] = str(error)
            return None

    def _connect(self) -> duckdb.DuckDBPyConnection:
        con = duckdb.connect()
        free = shutil.disk_usage(tempfile.gettempdir()).free
        try:
            con.execute(f"set memory_limit = {quoted(self._memory)}")
        except duckdb.Error as error:
            con.close()
            raise QueryError(f"memory {self._memory!r} is no size; write 2GB, 500MiB or 50%") from error
        con.execute(f"set temp_directory = {quoted(str(self._spill))}")
        con.execute(f"set max_temp_directory_size = '{int(free * SPILL_SHARE)}B'")
        con.execute(f"set max_execution_time = {int(self._timeout_s * 1000)}")
        con.execute("set python_enable_replacements = false")  # no variable of ours after FROM
        if "://" in self.root:  # by fsspec: DuckDB's own reader of object stores is a download
            con.register_filesystem(fsspec.core.url_to_fs(self.root)[0])
        return con

    def _show(self, con: duckdb.DuckDBPyConnection, name: str) -> None:
        """Put a stored table on a connection."""
        schema, files = self._stored[name]
        if name in self._gone:
            return
        if not files:
            con.register(name, schema.empty_table())
            return
        rows = f"select * from read_parquet([{', '.join(map(quoted, files))}], union_by_name = true)"
        con.execute(f"create temp view {name} as {rows}")
        columns = "select column_name from duckdb_columns() where table_name = ?"
        there = {column for (column,) in con.execute(columns, [name]).fetchall()}
        if not there.issuperset(schema.names):  # a declared column that no file has yet is null
            con.register(f"{name}_declared", schema.empty_table())
            con.execute(
                f"create or replace temp view {name} as {rows} union all by name from {name}_declared"
            )

    def _lock(self) -> None:
        """From here on the connection reads nothing but the lake's own files."""
        roots = {self.root} if "://" in self.root else {self.root, str(Path(self.root).absolute())}
        allowed = ", ".join(quoted(root + "/") for root in sorted(roots))
        self.con.execute(f"set allowed_directories = [{allowed}]")
        self.con.execute("set enable_external_access = false")
        self.con.execute("set lock_configuration = true")

    def names(self) -> list[str]:
        """Everything that can stand after FROM."""
        return sorted([*EVENT_TABLES, *self.models.by_name])

    @property
    def kept(self) -> frozenset[str]:
        """The models that are read as the set keeps them; others are computed."""
        return frozenset(self._given)

    def columns(self, name: str) -> list[tuple[str, str]]:
        """The columns of a table or model, and their types."""
        relation = self.sql(f"from {name}")
        return [(c, str(kind)) for c, kind in zip(relation.columns, relation.types, strict=True)]

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """The relation of a query, which runs when its rows are asked for, once for each asking.

        `.to_arrow_table()`, `.pl()` (Polars), `.df()` (pandas), `.to_arrow_reader(rows)` (batches of any
        result in bounded memory), `.fetchall()`; printing it shows its first rows.

        Raises QueryError for a statement that is not a read, and for one that DuckDB refuses.
        """
        read = self.check(query)
        try:
            return self._relation(read)
        except duckdb.Error as error:
            raise self._placed(error, read) from error

    def check(self, query: str) -> Read:
        """What a query reads, without running it.  Raises QueryError where it is no read."""
        try:
            return check(self._parser, query)
        except duckdb.Error as error:
            raise self.said(error, query) from error

    def said(self, error: BaseException, query: str) -> QueryError | QueryStopped:
        """An error of DuckDB as one of ours, to be raised."""
        return self._told_gone(error) or said(error, query, self.names())

    def _told_gone(self, error: BaseException) -> QueryError | None:
        """The reason for a table that is not there as of then."""
        gone = [why for name, why in self._gone.items() if f" {name} " in str(error)]
        return QueryError("; ".join(gone)) if gone else None

    def _placed(self, error: duckdb.Error, read: Read) -> QueryError | QueryStopped:
        """The error with its place, which DuckDB tells of a statement, but not of a relation."""
        if not isinstance(error, duckdb.InterruptException) and not self._told_gone(error):
            planned = read.text if read.explains else f"explain\n{read.text}"  # a line of ours before it
            try:
                self.con.execute(planned)
            except duckdb.Error as placed:
                return self.said(placed, planned)
        return self.said(error, read.text)

    def _relation(self, read: Read) -> duckdb.DuckDBPyRelation:
        if read.lists:
            return self.con.from_arrow(pa.table({"name": self.names()}))
        self._define(read.names)
        return self.con.sql(read.text)

    def _define(self, names: Sequence[str] | frozenset[str]) -> None:
        """Plan the views that a query names, once: planning all of them takes a second."""
        needed, ahead = set[str](), list(names)
        while ahead:
            name = ahead.pop()
            if name in self._stored:
                needed.add(name)
            elif name in self.models.by_name and name not in needed:
                needed.add(name)
                ahead += self.models.by_name[name].inputs
        for name in sorted((needed & self._stored.keys()) - self._shown):
            self._show(self.con, name)
            self._shown.add(name)
        missing = (set(names) & self.models.by_name.keys()) - self._shown
        if missing:
            self.models.define(self.con, self.params, given=self._given, names=missing)
            self._shown |= missing

    def stream(self, query: str, shape: Shape | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The columns of a query, and its rows in batches as they are found: any result in bounded memory.

        `shape` makes other columns of them: see Shape.  Raises QueryError, QueryStopped; the iterator too.
        """
        read = self.check(query)
        try:
            relation = self._relation(read)
            if read.explains or read.lists or shape is not None:
                relation = self._shaped(read, relation, shape)
            reader = relation.to_arrow_reader(BATCH_ROWS)
        except duckdb.Error as error:
            raise self._placed(error, read) from error
        return reader.schema, self._batches(reader, query)

    def _batches(self, reader: pa.RecordBatchReader, query: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (duckdb.Error, OSError, MemoryError) as error:  # in a reader DuckDB's errors are OSError
            raise self.said(error, query) from error
        finally:
            reader.close()

    def _shaped(
        self, read: Read, relation: duckdb.DuckDBPyRelation, shape: Shape | None
    ) -> duckdb.DuckDBPyRelation:
        kinds = list(zip(relation.columns, relation.types, strict=True))
        columns = [(f"c{i}", name, kind) for i, (name, kind) in enumerate(kinds)]
        if read.explains or read.lists:  # neither can stand in parentheses
            rows = relation.fetchall()
            held = {f"c{i}": [row[i] for row in rows] for i in range(len(columns))}
            relation = self.con.from_arrow(pa.table(held))
            wanted = ", ".join(f"{ref} as {identifier(name)}" for ref, name, _ in columns)
            return relation.project(wanted if shape is None else shape(columns))
        references = ", ".join(ref for ref, _, _ in columns)  # two columns may have one name
        wanted = "*" if shape is None else shape(columns)
        return self.con.sql(f"select {wanted} from ({read.text}\n) as t({references})")

    def interrupt(self) -> None:
        """Stop the query that runs on this lake, from another thread: there it raises QueryStopped, or from
        a relation of `sql` duckdb.InterruptException.  The next query runs as ever.
        """
        self.con.interrupt()

    def arrow(self, name: str) -> pa.Table:
        """A table or model by name, as Arrow; a model in the order of its key: same events, same rows."""
        query = self._whole(name)
        return self._arrow(self.sql(query), query)

    def report(self, name: str) -> pa.Table:
        """The answer to a question (`headrace report --list`), as Arrow, in the order of its key.

        Raises lake.questions.UnknownQuestion for a name that is none.
        """
        return self.arrow(find(self.models, name).name)

    def pandas(self, name: str) -> pd.DataFrame:
        """A table or model by name, as pandas, which `pip install 'headrace[pandas]'` brings.

        Columns have Arrow's own types (pandas.ArrowDtype): integers with nulls stay integers, and lists
        stay buffers, which `frame[name].array` holds, without one Python number.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}; pip install 'headrace[pandas]'", name=error.name) from error

        frame: pd.DataFrame = self.arrow(name).to_pandas(types_mapper=pd.ArrowDtype)
        return frame

    def polars(self, name: str) -> pl.DataFrame:
        """A table or model by name, as Polars."""
        import polars as pl

        frame = pl.from_arrow(self.arrow(name))
        if not isinstance(frame, pl.DataFrame):
            raise QueryError(f"{name} has no columns")
        return frame

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query as dictionaries; sums of integers (HUGEINT in DuckDB) as integers."""
        rows = self._arrow(self.sql(query), query).to_pylist()
        return [{name: plain(value) for name, value in row.items()} for row in rows]

    def _arrow(self, relation: duckdb.DuckDBPyRelation, query: str) -> pa.Table:
        try:
            return relation.to_arrow_table()
        except duckdb.Error as error:
            raise self.said(error, query) from error

    def _whole(self, name: str) -> str:
        if name not in self.names():
            raise QueryError(f"no table or model {name!r}; there are {', '.join(self.names())}")
        model = self.models.by_name.get(name)
        return f"select * from {name}" + (f" order by {', '.join(model.key)}" if model else "")

    def audit(self) -> dict[str, pa.Table]:
        """The violating rows of every audit; empty tables where all holds."""
        if self._gone:
            raise QueryError("; ".join(self._gone.values()))
        with closing(self._connect()) as con:
            for name in self._stored:
                self._show(con, name)
            return self.models.audit(con, self.params, given=self._given)

    def sets(self) -> list[str]:
        """The derived sets of this lake."""
        return self._store.folders("sets")

    def memory_bytes(self) -> int:
        """What queries may hold at once; the rest spills."""
        found = self.sql("select parse_formatted_bytes(current_setting('memory_limit'))").fetchall()
        return int(found[0][0])

    def remove_spilled(self) -> None:
        """Remove what was spilled, where the process ends with a query at work; else DuckDB removes it."""
        shutil.rmtree(self._spill, ignore_errors=True)

    def close(self) -> None:
        """Close the connection; what it spilled goes with the last relation and reader of it."""
        self._parser.close()
        self.con.close()


def read_params(root: str, set_name: str, otherwise: Params) -> Params:
    """The parameters that a set was made with."""
    found = Store(root).read_file(f"sets/{set_name}/params.json")
    return otherwise if found is None else msgspec.json.decode(found, type=Params)


def open_lake(
    path: str | Path,
    set_name: str = "default",
    as_of: str | datetime | None = None,
    *,
    memory: str | None = None,
    timeout_s: float | None = None,
) -> Lake:
    """The lake of a run's folder, or a lake's own folder or URL, now or as it stood.

    as_of      a moment (see lake.as_of): "15m" ago, "2026-03-01T12:00Z", a datetime, "events/calls@12"
    memory     what queries may hold at once, such as "2GB"; the rest spills to a temporary folder, up to half
               of what is free there.  Without it half of the memory that the machine has
    timeout_s  seconds that a query may compute before it is stopped; without it as long as it takes
    Raises NotARun where there is neither, AsOfError for a moment that is none, QueryError for a memory that
    is no size.
    """
    root = str(path)
    run = Run(Path(path))
    params = Params(set_name=set_name)
    if "://" not in root and run.config_file.is_file():
        root, admission = run.lake, run.config().admission
        params = Params(set_name=set_name, **msgspec.structs.asdict(admission))
    elif not Store(root).folders("events"):
        raise NotARun(f"{path} is neither a run nor a lake; `headrace run demo` makes a run")
    as_of_ms = None if as_of is None else moment(as_of, Store(root))
    return Lake(root, read_params(root, set_name, params), as_of_ms, memory=memory, timeout_s=timeout_s)
