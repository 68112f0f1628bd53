"""The command `headrace materialize`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from lake.terminal import DIFFERS, json_option, lake_argument, progress, set_option, show_json, show_table

if TYPE_CHECKING:
    from ingest.sets import Materialized

ROWS_SHOWN = 20
"""Of an audit; `--json` and `headrace audit` have all."""


@click.command("materialize")
@lake_argument
@set_option
@click.option(
    "--as", "name", metavar="NAME", help="Name of the set (default: what differs, such as j_max=3)."
)
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(min=1), help="How many processes."
)
@click.option("--list", "listing", is_flag=True, help="Show the sets that there are, derive nothing.")
@json_option
def materialize_command(  # noqa: PLR0917  click gives them by name
    path: str, settings: tuple[str, ...], name: str | None, workers: int, listing: bool, as_json: bool
) -> None:
    """Derive a set of tables (paths, targets, weights) under other rules, beside those that are there.

    Every complete group that the set lacks, in portions, then the audits of the set: call it again when more
    groups came, or after it was killed.  --set takes j_max (0: no cap), seed, advantage (centred,
    standardised) and roles (main,main-summary,...: whose leaves may be admitted, the first class first).
    Without it the set is `default`, for a lake that has none.  A set on an object store is for one machine
    at a time.

    Exit status 1 where a group was held back or an audit names rows.

    \b
    headrace materialize runs/demo --set j_max=3 --as wide
    headrace materialize lakes/traces --workers 2
    headrace materialize runs/demo --list
    headrace sql runs/demo "from weights" --set wide
    """
    if listing:
        _list(path, as_json=as_json)
        return
    from ingest.executors import Work, executor_of
    from ingest.sets import materialize

    began = time.monotonic()
    with progress() as bar, executor_of(workers) as executor:
        task = bar.add_task("", total=None)
        done = materialize(
            path,
            settings,
            name,
            Work(executor, lambda stage, n, of: bar.update(task, description=stage, completed=n, total=of)),
            lambda stage: bar.update(task, description=stage),
        )
    _show(done, time.monotonic() - began, as_json=as_json)
    if not done.sound:
        sys.exit(DIFFERS)


def _list(path: str, *, as_json: bool) -> None:
    import msgspec

    from ingest.sets import listed

    rows = [msgspec.structs.asdict(each) for each in listed(path)]
    if as_json:
        show_json(rows)
    else:
        show_table(rows, title=f"{path}: derived sets")


def _show(done: Materialized, seconds: float, *, as_json: bool) -> None:
    violating = {audit: table for audit, table in done.audits.items() if table.num_rows}
    counts: dict[str, Any] = {
        "set": done.params.set_name,
        "groups": done.groups,
        "new": done.new,
        "held": len(done.held),
        "incomplete": done.incomplete,
        "seconds": round(seconds, 1),
    }
    if as_json:
        show_json(
            counts
            | {"lake": done.lake, "params": done.params, "held": done.held, "waiting": done.waiting}
            | {"violations": {audit: table.num_rows for audit, table in done.audits.items()}}
            | {"rows": {audit: table.to_pylist() for audit, table in violating.items()}}
        )
        return
    show_table([counts], title=done.lake)
    if done.waiting:
        show_table(
            done.waiting, title="incomplete groups" + (", the first ones" if done.incomplete > 10 else "")
        )
    for group in done.held[:ROWS_SHOWN]:
        click.echo(f"held back: {group}; `headrace audit --set {done.params.set_name}` says why")
    for audit, table in violating.items():
        show_table(table.slice(0, ROWS_SHOWN).to_pylist(), title=f"{audit}: {table.num_rows} rows")
    click.echo(f"{len(done.audits)} audits, {len(violating)} of them name rows")
