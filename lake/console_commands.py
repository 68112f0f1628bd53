"""What the console does beside SQL: the commands that begin with a dot.

Commands(answers).run(".schema weights")       False where the console is to end
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

import click

from lake.catalogue import entries, entry
from lake.console_plan import plan_lines
from lake.output import FORMS, Answers
from lake.query_errors import QueryError, closest
from lake.terminal import PIPED_COLUMNS, show_table

_Command = Callable[["Commands", str], bool | None]


class Commands:
    """The dot commands on one console: they show what there is, and change how answers look."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def run(self, line: str) -> bool:
        """Do one of them; whether the console goes on.

        Raises QueryError for one that does not exist or whose argument is wrong, and what a query raises.
        """
        name, _, argument = line.strip().rstrip(";").partition(" ")
        command = COMMANDS.get(name.lower())
        if command is None:
            raise QueryError(f"no command {name!r}; {closest(name.lower(), COMMANDS)}; `.help` tells of them")
        return command[2](self, argument.strip()) is not False  # what shows something gives nothing

    def tables(self, pattern: str) -> None:
        found = entries(self._answers.lake, pattern or "*")
        show_table([{"name": e.name, "kind": e.kind, "what it is": e.about} for e in found])

    def schema(self, name: str) -> None:
        """Columns with their types, what a row is, and the key."""
        if not name:
            raise QueryError("`.schema NAME` wants a table or model; `.tables` has their names")
        lake = self._answers.lake
        found = entry(lake, name)
        self._answers.runner.begin()
        columns = self._answers.runner.call(lambda: lake.columns(found.name))
        click.echo(f"{found.name} ({found.kind})\n{found.header}\nKey: {', '.join(found.key)}")
        show_table([{"column": column, "type": kind} for column, kind in columns])

    def model(self, name: str) -> None:
        """The SQL of a model, and what it reads."""
        lake = self._answers.lake
        model = lake.models.by_name.get(entry(lake, name).name) if name else None
        if model is None:
            raise QueryError(f"`.model NAME` wants a model, {name or 'nothing'} is none: it has no SQL")
        from rich.console import Console
        from rich.syntax import Syntax

        out = Console()
        kept = "kept by the set, as it was derived" if model.name in lake.kept else "computed when asked for"
        click.echo(f"{model.folder}/{model.name}.sql: {kept}; reads {', '.join(sorted(model.inputs))}")
        if out.is_terminal:
            out.print(Syntax(model.select, "sql", background_color="default", word_wrap=True))
        else:
            click.echo(model.select)

    def explain(self, query: str) -> None:
        """How a query is computed; with `analyze` before it, it runs and each part tells its time."""
        first, _, rest = query.partition(" ")
        analyze = first.lower() in ("analyze", "analyse")
        query = rest.strip() if analyze else query
        if not query:
            raise QueryError("`.explain QUERY` and `.explain analyze QUERY` want a query")
        lake, runner = self._answers.lake, self._answers.runner
        lake.check(query)  # an error tells its place in what was typed
        options = "analyze, format json" if analyze else "format json"
        runner.begin()
        (plan,) = runner.call(lambda: lake.rows(f"explain ({options}) {query}"))
        width = shutil.get_terminal_size((PIPED_COLUMNS, 24)).columns
        click.echo("\n".join(plan_lines(plan["explain_value"], width)))

    def form(self, name: str) -> None:
        if name and name not in FORMS:
            raise QueryError(f"no format {name!r}; there are {', '.join(FORMS)}")
        if name == "parquet" and sys.stdout.isatty():
            raise QueryError(
                "parquet is for a file: `headrace sql RUN QUERY --format parquet --output FILE`, in a shell"
            )
        self._answers.form = name or self._answers.form
        click.echo(f"format {self._answers.form}")

    def timing(self, value: str) -> None:
        if value not in ("", "on", "off"):
            raise QueryError(f"timing is on or off, not {value!r}")
        self._answers.timing = value == "on" if value else self._answers.timing
        click.echo(f"timing {'on' if self._answers.timing else 'off'}")

    def limit(self, value: str) -> None:
        if value and (not value.isdecimal() or int(value) < 1):
            raise QueryError(f"the limit is {value!r}; 1 or more rows of a table are shown")
        self._answers.limit = int(value) if value else self._answers.limit
        click.echo(f"limit {self._answers.limit}")

    def help(self, _argument: str) -> None:
        usages = [f"{name} {argument}".strip() for name, (argument, _, _) in COMMANDS.items()]
        width = max(map(len, usages))
        for usage, (_, does, _) in zip(usages, COMMANDS.values(), strict=True):
            click.echo(f"{usage.ljust(width)}  {does}")
        click.echo(
            "\nSQL is DuckDB's, read-only, and ends in `;`.  Tab completes; the arrows and Ctrl-R go through "
            "the\nhistory; Ctrl-C stops a query, or clears the line; Ctrl-D leaves."
        )

    def quit(self, _argument: str) -> bool:
        return False


COMMANDS: dict[str, tuple[str, str, _Command]] = {
    ".tables": ("[PATTERN]", "tables and models, and what each is; `*` stands for anything", Commands.tables),
    ".schema": ("NAME", "columns and types of one, what a row of it is, its key", Commands.schema),
    ".model": ("NAME", "the SQL of a model", Commands.model),
    ".explain": ("[analyze] QUERY", "how a query is computed; analyze runs it", Commands.explain),
    ".format": ("[table|csv|json]", "how rows are written", Commands.form),
    ".limit": ("[N]", "rows of a table that are shown", Commands.limit),
    ".timing": ("[on|off]", "whether each answer says how long it took", Commands.timing),
    ".help": ("", "this", Commands.help),
    ".quit": ("", "leave", Commands.quit),
    ".exit": ("", "leave", Commands.quit),
}
