"""The commands of ingestion: `headrace ingest`, `headrace lake rebuild`, `headrace log restore`; `headrace
import` stands in `ingest.importing.command`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingest.importing.command import import_group
from ingest.materialize_command import materialize_command
from ingest.rollouts.engines_command import engines_command
from ingest.rollouts.execution_command import execution_group
from ingest.rollouts.proxy_command import proxy_command
from ingest.rollouts.rollout_command import rollout_command
from lake.commands import lake_group, log_group
from lake.terminal import (
    DIFFERS,
    console,
    json_option,
    lake_argument,
    progress,
    run_argument,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from ingest.comparing import Compared
    from ingest.supervise import Standing


@click.command("ingest")
@run_argument
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(min=1), help="How many processes."
)
@click.option("--once", is_flag=True, help="End when the lake holds what the log holds.")
@click.option("--metrics-port", type=int, help="Prometheus metrics: this port and those after it (0: any).")
@json_option
def ingest_command(run: Path, workers: int, once: bool, metrics_port: int | None, as_json: bool) -> None:
    """Write a run's log into its lake: event tables, then derived tables of each complete group.

    Beside a run that is alive on Kafka the workers join those of the run; start more on other machines,
    and stop or kill any: each event is in the lake once.  Ctrl-C stops cleanly.

    \b
    headrace ingest runs/demo --workers 2
    headrace ingest runs/demo --once --json
    """
    from rich.live import Live

    from ingest.supervise import ingest
    from lake.layout import Run

    out = console()
    with Live(console=out, refresh_per_second=4, transient=True) as live:

        def show(standing: Standing) -> None:
            live.update(
                f"log {sum(standing.ends.values())}  lake {sum(standing.lake.values())}  lag {standing.lag()}"
            )

        standing, restarts = ingest(
            Run(run), workers, once=once, metrics_port=metrics_port, say=out.print, show=show
        )
    if as_json:
        lag, records = standing.lag(), sum(standing.lake.values())
        show_json({"run": str(run), "records": records, "lag": lag, "restarts": restarts})
    else:
        show_table(standing.rows(), title=f"{run}: log and lake")


@lake_group.command("rebuild")
@run_argument
@click.option("--into", metavar="PATH", help="Where to build (default: beside the lake).")
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(min=1), help="How many processes."
)
@click.option("--ray", "ray_address", metavar="HOST:PORT", help="Share the work out on a Ray cluster.")
@click.option("--set-name", "set_names", multiple=True, help="Only this derived set; may be repeated.")
@click.option("--check", is_flag=True, help="Compare, remove what was built, exit 1 where a table differs.")
@click.option("--replace", "replacing", is_flag=True, help="Put it in the lake's place; the old one is kept.")
@json_option
def rebuild_command(  # noqa: PLR0917  click gives them by name
    run: Path,
    into: str | None,
    workers: int,
    ray_address: str | None,
    set_names: tuple[str, ...],
    check: bool,
    replacing: bool,
    as_json: bool,
) -> None:
    """Make every table of a run again from its log alone, and compare them with the lake's.

    Event tables, dead letters and derived sets, row by row in order; the digest of each group is held
    against its group.ready too.  On Ray each node needs this software, the log and the lake under the
    same addresses, and its own keys.

    \b
    headrace lake rebuild runs/demo --check
    headrace lake rebuild runs/demo --workers 2 --replace
    headrace lake rebuild runs/demo --ray 10.0.0.1:6379 --into s3://bucket/again
    """
    from ingest.executors import Work, executor_of
    from ingest.rebuild import check_comparable, discard, rebuild, replace
    from lake.layout import Run

    if check and replacing:
        raise click.UsageError("--check removes what it built, --replace keeps it; leave one out")
    if replacing and set_names:
        raise click.UsageError("--replace is for a whole lake; leave --set-name out")
    if check:
        check_comparable(Run(run))
    with stages() as (bar, watch), executor_of(workers, ray_address) as executor:
        done = rebuild(Run(run), Work(executor, watch), into=into, set_names=set_names, say=bar.console.print)
    document: dict[str, object] = {
        "run": str(run), "path": done.path, "rows": done.rows, "seconds": round(done.seconds, 1),
        "places": done.places, "differing": done.differing, "violating": done.violating, "replaced": None,
        "tables": [_compared(t) for t in done.tables],
    }  # fmt: skip
    if check:
        discard(done)
    elif replacing:
        document["replaced"] = replace(Run(run), done)
    if as_json:
        show_json(document)
    else:
        show_table([_compared(t) for t in done.tables], title=f"{run}: the lake, and made again")
        click.echo(f"{done.rows} rows made in {done.seconds:.1f} s; differing: {done.differing or 'none'}")
        if done.announced_differing:
            click.echo(f"not as group.ready says: {', '.join(done.announced_differing[:20])}")
        if done.violating:
            click.echo(f"an audit names rows (see `headrace audit`): {', '.join(done.violating[:20])}")
        if not check:
            click.echo(f"kept: {document['replaced'] or done.path}")
    if check and done.differing:
        sys.exit(DIFFERS)


def _compared(table: Compared) -> dict[str, object]:
    """One row of what `lake rebuild` shows; of many differing parts the first."""
    return {
        "table": table.table,
        "rows": table.rows,
        "again": table.rows_again,
        "equal": table.equal,
        "differing": ", ".join(table.differing[:5]) + (", ..." if len(table.differing) > 5 else ""),
    }


@contextmanager
def stages() -> Iterator[tuple[Progress, Callable[[str, int, int], None]]]:
    """A bar that shows one stage after the other, and what to tell it: stage, done, all."""
    with progress() as bar:
        task = bar.add_task("", total=None)
        yield bar, lambda stage, done, of: bar.update(task, description=stage, completed=done, total=of)


@log_group.command("restore")
@lake_argument
@click.option("--into", metavar="LOGURL", help="The log to fill (default: the run's own).")
@click.option("--blobs", metavar="PATH", help="Where its large fields go (default: the run's own).")
@json_option
def restore_command(path: str, into: str | None, blobs: str | None, as_json: bool) -> None:
    """Fill a log from a lake: every event at its old offset, with its old time.

    The log must be empty, or hold the beginning of the same restore.  Holes become gaps, so the lake
    goes on with its offsets: start the run or `headrace ingest` on the restored log.  Routed experts, which
    lie in blobs alone, are carried along to other --blobs where a run is given; of a lake, copy them.

    \b
    headrace log restore runs/demo
    headrace log restore s3://bucket/lake --into kafka://127.0.0.1:9092/demo --blobs s3://bucket/blobs
    """
    from ingest.restore import old_blobs, opened, restore
    from lake.layout import lake_root
    from lake.store import Store

    store = Store(lake_root(path))
    with closing(opened(path, store, into, blobs)) as log, stages() as (_, watch):
        done = restore(store, log, lambda n, of: watch("records", n, of), old_blobs(path))
    document = {"records": done.records, "written": done.written, "gaps": done.gaps}
    document |= {"dead_letters": done.dead_letters}
    document |= {"experts_carried": done.experts_carried, "experts_lost": done.experts_lost}
    if as_json:
        show_json({"lake": store.root, **document})
    else:
        show_table([document], title=f"{store.root}: records in the log")


COMMANDS: tuple[click.Command, ...] = (
    ingest_command, import_group, materialize_command, rollout_command, proxy_command, execution_group,
    engines_command,
)  # fmt: skip
