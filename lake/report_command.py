"""`headrace report`: one question about a run, answered by the model of its name under `sql/reports/`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from lake.sql_text import identifier
from lake.terminal import json_option, show_json, show_table

if TYPE_CHECKING:
    import pyarrow as pa

    from lake.query import Lake
    from lake.questions import Question

ROWS_SHOWN = 50
BAR_CHARS = 20
DIGEST_CHARS = 12
TEXT_COLUMNS = 110

Summary = Callable[[str, bool], None]  # (path, as_json): what a run did, where no question is named


def report_command(summary: Summary) -> click.Command:
    """The command, with what it shows of a run where no question is named."""

    @click.command("report")
    @click.argument("path", metavar="RUN|LAKE", required=False)
    @click.argument("question", required=False)
    @click.option("--list", "listed", is_flag=True, help="All questions, a line each.")
    @click.option("--where", metavar="SQL", help="Only rows for which this holds, of the report's columns.")
    @click.option("--by", metavar="COLUMN", help="The largest of this column first.")
    @click.option(
        "--limit",
        type=click.IntRange(min=1),
        help=f"At most so many rows (default: {ROWS_SHOWN}; all with --json).",
    )
    @click.option("--set", "set_name", default="default", help="The derived set to read (default: default).")
    @click.option("--as-of", metavar="TIME|VERSION", help="Every table as it stood then.")
    @json_option
    def command(  # noqa: PLR0917  click gives them by name
        path: str | None,
        question: str | None,
        listed: bool,
        where: str | None,
        by: str | None,
        limit: int | None,
        set_name: str,
        as_of: str | None,
        as_json: bool,
    ) -> None:
        """Answer one question about a run or a lake; without a question: what the run did.

        The answer is the question, its rows, and what a row is; --list shows what can be asked, and
        `headrace sql RUN "from QUESTION"` is the same table for a query of your own.

        \b
        headrace report runs/demo
        headrace report runs/demo --list
        headrace report runs/demo staleness-by-step
        headrace report runs/demo time-to-ready --where "total_s > 10" --by running_s --limit 5
        headrace report runs/demo lineage --where "execution_id = 'g-000000.0' and call_id = 3"
        headrace report runs/demo waiting-for --as-of 15m
        """
        if listed:
            _list(as_json)
        elif path is None:
            raise click.UsageError("give the folder of a run, or --list for the questions there are")
        elif question is not None:
            from lake.query import open_lake
            from lake.questions import find

            lake = open_lake(path, set_name, as_of)
            answer(lake, find(lake.models, question), where, by, limit, as_json=as_json)
        elif where or by or limit or as_of or set_name != "default":
            raise click.UsageError(
                "--where, --by, --limit, --set and --as-of are for a question; --list shows all"
            )
        else:
            summary(path, as_json)

    return command


def _list(as_json: bool) -> None:
    from lake.models import Models
    from lake.questions import questions

    rows = [{"name": q.typed, "question": q.question} for q in questions(Models.load())]
    if as_json:
        show_json(rows)
    else:
        show_table(rows)


def answer(
    lake: Lake,
    asked: Question,
    where: str | None = None,
    by: str | None = None,
    limit: int | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Print the answer: for people, or as one JSON document.  Raises as `rows_of`."""
    found = rows_of(lake, asked, where, by)
    shown = found.slice(0, limit or (found.num_rows if as_json else ROWS_SHOWN)).to_pylist()
    why = None if found.num_rows else _why_none(lake, asked, where)
    if as_json:
        said = {"question": asked.question, "name": asked.name, "row": asked.row, "then": asked.then}
        show_json(said | {"rows": shown, "of": found.num_rows, "empty": why})
        return
    click.echo(asked.question)
    if why is not None:
        _echo(f"No rows: {why}")
        return
    show_table([_for_people(row) for row in shown])
    if len(shown) < found.num_rows:
        click.echo(f"The first {len(shown)} of {found.num_rows} rows; --limit shows more.")
    _echo(asked.row)
    _echo(f"Then: {asked.then}")


def _echo(text: str) -> None:
    click.echo(textwrap.fill(text, TEXT_COLUMNS, break_on_hyphens=False))


def rows_of(lake: Lake, asked: Question, where: str | None = None, by: str | None = None) -> pa.Table:
    """The rows of a report for which `where` holds (a boolean expression of SQL), in the order of its key.

    by  a column whose largest values come first
    Raises lake.query.QueryError for an expression that is none and for a column that is not there.
    """
    import pyarrow as pa

    held = f" where (\n{where}\n)" if where else ""  # on lines of its own: it may end in a comment
    first = f"{identifier(by)} desc nulls last, " if by else ""
    query = f"select * from {asked.name}{held} order by {first}{', '.join(asked.key)}"
    schema, batches = lake.stream(query)
    return pa.Table.from_batches(batches, schema)


def _why_none(lake: Lake, asked: Question, where: str | None) -> str:
    others = rows_of(lake, asked).num_rows if where else 0
    return f"none of the {others} rows is one where {where}." if others else asked.empty


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a bar beside its share, and digests by their beginning."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        digest = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value)
        shown[name] = f"{value[:DIGEST_CHARS]}..." if digest else value
        if name == "share":
            shown[""] = _bar(value)
    return shown


def _bar(share: float | None) -> str:
    block = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return block * round(BAR_CHARS * min(max(share or 0.0, 0.0), 1.0))
