"""The command `headrace audit`: what must always hold, and the rows where it does not.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from lake.terminal import DIFFERS, json_option, lake_argument, show_json, show_table

if TYPE_CHECKING:
    from lake.models import Model
    from lake.query import Lake

ROWS_SHOWN = 20
"""Of an audit in a table; `--json` has all."""


@click.command("audit")
@lake_argument
@click.option("--set", "set_name", default="default", help="The derived set to audit (default: default).")
@json_option
def audit_command(path: str, set_name: str, as_json: bool) -> None:
    """Check what must always hold: each sampled token trained at most once, and so on.

    Shows every audit with what a violating row of it is, and the rows with their ids; then the groups that
    were held back when they were derived, and why.  Exit status 1 where there are any.

    \b
    headrace audit runs/demo
    headrace audit runs/demo --set j_max=3 --json
    """
    from lake.query import QueryError, open_lake

    with closing(open_lake(path, set_name)) as lake:
        if set_name not in {"default", *lake.sets()}:
            raise QueryError(
                f"{path} has no set {set_name!r}; it has {', '.join(lake.sets()) or 'none'}: "
                "`headrace materialize` makes one"
            )
        found, held = lake.audit(), held_back(lake)
        checks = {name: a_row(lake.models.by_name[name]) for name in found}
    violations = {name: table.num_rows for name, table in found.items()}
    rows = {name: table.to_pylist() for name, table in found.items() if table.num_rows}
    listed = [{"audit": name, "violations": n, "a row is": checks[name]} for name, n in violations.items()]
    if as_json:
        show_json({"violations": violations, "rows": rows, "held": held, "audits": listed})
    else:
        show_table(listed)
        for name, some in rows.items():
            show_table(some[:ROWS_SHOWN], title=_title(name, len(some)))
        if held:
            show_table(held[:ROWS_SHOWN], title=_title("held back, never announced", len(held)))
    if rows or held:
        sys.exit(DIFFERS)


def _title(what: str, rows: int) -> str:
    return what if rows <= ROWS_SHOWN else f"{what}: {ROWS_SHOWN} of {rows} rows (--json has all)"


def a_row(model: Model) -> str:
    """What a row of a model is: the first sentence of its header, without `One row`."""
    first = " ".join(model.header.split()).split(". ")[0]
    return first.removeprefix("One row ").rstrip(".")


def held_back(lake: Lake) -> list[dict[str, Any]]:
    """The violating rows of groups that the set does not have for their sake: group_id, audit, row."""
    from lake.store import Store

    folder = f"sets/{lake.params.set_name}"
    violations = Store(lake.root).existing(f"{folder}/violations")
    if violations is None:
        return []
    weights = Store(lake.root).existing(f"{folder}/weights")
    ready = set(weights.read(columns=["group_id"])["group_id"].to_pylist()) if weights is not None else set()
    rows = violations.read().to_pylist()
    found = {(r["group_id"], r["audit"], r["row"]): r for r in rows if r["group_id"] not in ready}
    return [found[key] for key in sorted(found)]
