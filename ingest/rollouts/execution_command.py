"""The commands `headrace execution ...`: executions whose harness somebody else starts.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from lake.terminal import json_option, run_argument, show_json, show_table


@click.group("execution")
def execution_group() -> None:
    """Executions whose harness somebody else starts: name them, end them, list them."""


@execution_group.command("new")
@run_argument
@click.option("--task", required=True, metavar="ID", help="An id of the run's tasks, or any name.")
@click.option(
    "--group", metavar="G", help="Its group, made where there is none (default: its own, ID or ID-2...)."
)
@click.option("--size", type=click.IntRange(min=1), help="Executions of a group that is made (default: 1).")
@click.option("--proxy", metavar="URL", help="Default: where the run's proxy listens.")
@click.option("--env", "as_env", is_flag=True, help='Lines that a shell reads: eval "$(...)".')
@json_option
def new_command(  # noqa: PLR0917  click gives them by name
    run: Path,
    task: str,
    group: str | None,
    size: int | None,
    proxy: str | None,
    as_env: bool,
    as_json: bool,
) -> None:
    """Name one execution: its base URL, and the key that opens it and no other.

    It is live from now on until `headrace execution finish`; a group is ready when all of its executions are
    made, ended and assessed.

    \b
    headrace execution new runs/mine --task fix-7
    headrace execution new runs/mine --task fix-7 --group fix-7 --size 8 --json
    headrace execution new runs/mine --task fix-7 --env > env.sh
    """
    from ingest.rollouts.command_line import dialect_environment
    from ingest.rollouts.outside import new, shell_lines
    from lake.layout import Run

    if as_env and as_json:
        raise click.UsageError("--env or --json; leave one out")
    made = new(Run(run), task, group=group, size=size, proxy=proxy)
    if as_env:
        variables = dialect_environment(made.base_url, made.api_key, Run(run).config().name)
        click.echo(shell_lines(variables | {"HEADRACE_EXECUTION": made.execution_id}))
        return
    document = {
        "execution": made.execution_id,
        "group": made.group_id,
        "index": made.index,
        "size": made.size,
        "base_url": made.base_url,
        "api_key": made.api_key,
    }
    if as_json:
        show_json(document)
        return
    for name, value in document.items():
        click.echo(f"{name:<10} {value}")


@execution_group.command("finish")
@run_argument
@click.argument("execution")
@click.option("--score", type=float, help="A number.")
@click.option("--missing", metavar="WHY", help="There is no score, and why.")
@click.option(
    "--status",
    type=click.Choice(["completed", "harness_timeout", "overall_timeout", "crashed"]),
    default="completed",
    show_default=True,
    help="How its harness ended.",
)
@click.option("--proxy", metavar="URL", help="Default: where the run's proxy listens.")
@json_option
def finish_command(  # noqa: PLR0917  click gives them by name
    run: Path,
    execution: str,
    score: float | None,
    missing: str | None,
    status: str,
    proxy: str | None,
    as_json: bool,
) -> None:
    """End an execution and assess it: it takes no more calls.

    Of one that has ended the score is told again, as a later version.

    \b
    headrace execution finish runs/mine fix-7.0 --score 0.5
    headrace execution finish runs/mine fix-7-2.0 --missing "the tests did not start"
    """
    from ingest.rollouts.outside import finish
    from lake.layout import Run

    if (score is None) == (missing is None):
        raise click.UsageError("give --score or --missing, one of them")
    if score is not None and status in {"overall_timeout", "crashed"}:
        raise click.UsageError(f"an execution that ended with {status} has no score; give --missing")
    events = finish(Run(run), execution, status=status, score=score, missing=missing or "", proxy=proxy)
    rows = [{"type": e.TYPE, **msgspec.to_builtins(e)} for e in events]
    if as_json:
        show_json({"execution": execution, "events": rows})
        return
    for row in rows:
        said = ("status", "calls", "assessment", "value", "version")
        click.echo(f"{row['type']}  " + "  ".join(f"{n} {row[n]}" for n in said if row.get(n) is not None))


@execution_group.command("list")
@run_argument
@json_option
def list_command(run: Path, as_json: bool) -> None:
    """The executions of a run as its log has them, in the order of their launches.

    \b
    headrace execution list runs/mine
    headrace execution list runs/mine --json
    """
    from ingest.rollouts.outside import listed
    from lake.layout import Run

    rows = listed(Run(run))
    if as_json:
        show_json(rows)
    else:
        show_table(rows)
