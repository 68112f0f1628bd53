"""The command `headrace sql`: one query, the statements of standard input, or a console.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from lake.terminal import DIFFERS, json_option, lake_argument, size_of_text

if TYPE_CHECKING:
    from lake.output import Answers

FORMS = click.Choice(["table", "csv", "json", "parquet"])


@click.command("sql")
@lake_argument
@click.argument("query", required=False)
@click.option("--format", "form", type=FORMS, help="How rows are written (default: table).")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to a file.")
@click.option("--limit", default=200, show_default=True, type=click.IntRange(min=1), help="Rows of a table.")
@click.option("--timing", is_flag=True, help="Say how long each query took (a console does).")
@click.option("--memory", metavar="SIZE", help="What a query may hold, such as 2GB (default: half of all).")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds a query may take.")
@click.option("--set", "set_name", default="default", help="The derived set to read (default: default).")
@click.option("--as-of", metavar="TIME|VERSION", help="Every table as it stood then.")
@json_option
def sql_command(  # noqa: PLR0917  click gives them by name
    path: str,
    query: str | None,
    form: str | None,
    output: Path | None,
    limit: int,
    timing: bool,
    memory: str | None,
    timeout: float | None,
    set_name: str,
    as_of: str | None,
    as_json: bool,
) -> None:
    """Read-only queries over every table and model of a run or a lake, in DuckDB's SQL.

    Without QUERY it is a console, with completion, history and `.help`; from a pipe it answers one statement
    after the other.  Rows are written as they are found: a result of any size takes bounded memory.  What
    queries cannot hold spills to a temporary folder.  Ctrl-C stops a query.

    TIME is 15m, 2h or 3d (ago), or 2026-03-01T12:00 (local; with Z: UTC).  VERSION is events/calls@12, the
    moment of that commit of that table (`headrace lake stats` shows them).

    \b
    headrace sql runs/demo
    headrace sql runs/demo "from progress"
    headrace sql runs/demo "select role, count(*) calls from calls group by role" --json
    headrace sql runs/demo "from event_calls" --format parquet --output calls.parquet
    headrace sql runs/demo "show tables"
    headrace sql runs/demo "from progress" --as-of 15m
    headrace sql runs/demo --format csv < questions.sql
    """
    form = _form(form, output, as_json=as_json)
    most = None if memory is None else size_of_text(memory)
    queries = [query] if query is not None else _piped()
    if queries is not None:
        _fits(queries, form, output)

    from lake.output import Answers
    from lake.query import open_lake
    from lake.stopping import QueryHangs, Runner, bound_memory

    lake = open_lake(path, set_name, as_of, memory=None if most is None else f"{most}B")
    bound_memory(lake.memory_bytes())
    runner = Runner(lake, timeout)
    answers = Answers(lake, runner, form, limit, timing or queries is None)
    try:
        if queries is None:
            from lake.console import Console

            Console(answers, path).run()
        else:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing is left
            _answer_all(answers, queries, output)
    except QueryHangs as error:
        lake.remove_spilled()
        click.echo(f"QueryStopped: {error}", err=True)
        sys.stdout.flush()
        os._exit(DIFFERS)  # its thread computes on, and would hold the process
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head`: nobody reads on
        sys.exit(DIFFERS)
    finally:
        runner.close()
    lake.close()


def _form(form: str | None, output: Path | None, *, as_json: bool) -> str:
    """The format that is meant.  Raises click.UsageError for what goes not together."""
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json is --format json; leave out one of it and --format {form}")
    form = "json" if as_json else form or "table"
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("--format parquet is for a file: add --output FILE, or a pipe")
    if form == "table" and output is not None:
        raise click.UsageError(f"--output {output} needs --format csv, json or parquet")
    return form


def _piped() -> list[str] | None:
    """The statements of standard input; None where it is a terminal."""
    if not sys.stdin.isatty():
        from lake.statements import pieces

        return list(pieces(sys.stdin.read()))
    if not sys.stdout.isatty():
        raise click.UsageError("the console needs a terminal to write to; give a QUERY")
    return None


def _fits(queries: list[str], form: str, output: Path | None) -> None:
    if not queries:
        raise click.UsageError("no statement on standard input; give a QUERY, or statements that end in `;`")
    if len(queries) > 1 and (output is not None or form == "parquet"):
        raise click.UsageError(f"{len(queries)} statements, but one file: give one, or --format csv or json")


def _answer_all(answers: Answers, queries: list[str], output: Path | None) -> None:
    """One after the other, to the first that fails."""
    from lake.console_commands import Commands
    from lake.query_errors import QueryError

    commands = Commands(answers)
    for number, query in enumerate(queries, 1):
        try:
            if query.lstrip().startswith("."):
                if not commands.run(query):
                    return
                continue
            with _sink(answers, output) as sink:
                answers.answer(query, sink)
        except QueryError as error:
            if len(queries) == 1:
                raise
            first = " ".join(query.split())
            said = first if len(first) <= 100 else f"{first[:100]}..."
            raise QueryError(f"statement {number} of {len(queries)}, {said}: {error}") from error


@contextmanager
def _sink(answers: Answers, output: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that is there when all rows are in it."""
    if output is None:
        from lake.output import standard_output

        sink = standard_output()
        yield sink
        sink.flush()
        return
    root = answers.lake.root
    if "://" not in root and output.resolve().is_relative_to(Path(root).resolve()):
        raise click.UsageError(f"--output {output} lies in the lake, which is read-only")
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
