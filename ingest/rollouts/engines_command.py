"""The command `headrace engines`: the engines of a run's proxy, and which of them leave and come back.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lake.terminal import json_option, run_argument, show_json, show_table

ANSWER_S_MAX = 30.0  # beyond what calls get to end


@click.command("engines")
@run_argument
@click.option("--drain", metavar="URL", help="No new calls go there; those that run go on elsewhere.")
@click.option("--undrain", metavar="URL", help="It takes calls again.")
@click.option("--add", metavar="URL", help="One more, perhaps URL#capacity=8.")
@click.option("--remove", metavar="URL", help="Drained, then forgotten.")
@click.option("--to", multiple=True, metavar="URL", help="Where its calls go; again for the next best.")
@click.option(
    "--finish-s", type=click.FloatRange(0, 86_400), default=0.0, help="Calls that end so soon end there."
)
@click.option("--proxy", metavar="URL", help="Default: where the run's proxy listens.")
@json_option
def engines_command(
    run: Path, to: tuple[str, ...], finish_s: float, proxy: str | None, as_json: bool, **asked: str | None
) -> None:
    """The engines behind a run's proxy: state, calls, capacity; and change them while harnesses run.

    Whoever waits for an answer of an engine that leaves sees one slow call: it is aborted there, and goes on
    at another after what it has.

    \b
    headrace engines runs/mine
    headrace engines runs/mine --drain http://127.0.0.1:30001 --to http://127.0.0.1:30000
    headrace engines runs/mine --undrain http://127.0.0.1:30001
    headrace engines runs/mine --add http://127.0.0.1:30002#capacity=16
    """
    from ingest.rollouts.steering import steer
    from lake.layout import Run

    wanted = {what: engine for what, engine in asked.items() if engine}
    if len(wanted) > 1:
        raise click.UsageError(f"--{' and --'.join(wanted)}: one change at a time")
    leaves = "drain" in wanted or "remove" in wanted
    if (to or finish_s) and not leaves:
        raise click.UsageError("--to and --finish-s are for --drain and --remove")
    what, engine = next(iter(wanted.items()), ("", ""))
    body: dict[str, Any] = {"engine": engine}
    if leaves:
        body |= {"to": list(to), "finish_s": finish_s}
    told = steer(Run(run), what, body, proxy=proxy, within_s=finish_s + ANSWER_S_MAX)
    if as_json:
        show_json(told)
    elif "engines" in told:
        show_table(told["engines"], title=f"{told['waiting']} calls wait for a place")
    else:
        show_table([told], title=f"{engine} takes no calls; what became of those that ran there")
