"""The commands of ingestion: `headrace ingest`, `headrace lake rebuild`, `headrace log restore`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lake.terminal import console, json_option, run_argument, show_json, show_table

if TYPE_CHECKING:
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


COMMANDS: tuple[click.Command, ...] = (ingest_command,)
