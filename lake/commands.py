"""The commands that read and keep a log and a lake: `headrace sql|audit|lake ...|log ...`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lake.terminal import DIFFERS, json_option, run_argument, show_json, show_table

if TYPE_CHECKING:
    import pyarrow as pa


@click.group("lake")
def lake_group() -> None:
    """Keep the tables of a run: their sizes, their files, making them again."""


@click.group("log")
def log_group() -> None:
    """Make a log, or fill one again."""


@click.command("sql")
@run_argument
@click.argument("query")
@click.option("--set", "set_name", default="default", help="The derived set to read (default: default).")
@json_option
def sql_command(run: Path, query: str, set_name: str, as_json: bool) -> None:
    """One read-only query over every table and model of a run or a lake, in DuckDB's SQL.

    \b
    headrace sql runs/demo "from progress"
    headrace sql runs/demo "select role, count(*) calls from calls group by role" --json
    headrace sql runs/demo "show tables"
    """
    from lake.query import open_lake

    lake = open_lake(run, set_name)
    rows = (
        [{"name": n} for n in lake.names()] if query.strip().lower() in ("show tables", ".tables") else None
    )
    if rows is None:
        rows = lake.rows(query)
    if as_json:
        show_json(rows)
    else:
        show_table(rows)


@click.command("audit")
@run_argument
@click.option("--set", "set_name", default="default", help="The derived set to audit (default: default).")
@json_option
def audit_command(run: Path, set_name: str, as_json: bool) -> None:
    """Check what must always hold: each sampled token trained at most once, and so on.

    Prints the violating rows with their ids.  Exit status 1 where there are any.

    \b
    headrace audit runs/demo
    """
    from lake.query import open_lake

    found: dict[str, pa.Table] = open_lake(run, set_name).audit()
    violations = {name: table.num_rows for name, table in found.items()}
    if as_json:
        show_json({"violations": violations})
    else:
        show_table([{"audit": name, "violations": n} for name, n in violations.items()])
        for name, table in found.items():
            if table.num_rows:
                show_table(table.slice(0, 20).to_pylist(), title=name)
    if any(violations.values()):
        sys.exit(DIFFERS)
