"""What every command shows: tables and progress for people, one JSON document for machines.

Results go to standard output, everything else to standard error, so that `--json` can be piped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

DIFFERS, MISUSED = 1, 2
"""Exit status: a check found a difference, or something failed; wrong use or input."""
PIPED_COLUMNS = 240
BYTES_SHOWN = 16

Command = TypeVar("Command", bound=Callable[..., Any])


def console() -> Console:
    """Standard error, for everything but results."""
    from rich.console import Console

    return Console(stderr=True)


def show_json(document: Any) -> None:
    """One JSON document on standard output; bytes as base64, what JSON has no form for as text."""
    click.echo(msgspec.json.encode(document, enc_hook=str).decode())


def cell(value: Any) -> str:
    """A value as a table shows it; bytes by their beginning and number.

    What a terminal would obey instead of showing (it may come from a tool or a broken record) is escaped.
    """
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, bytes):
        more = f"... {len(value)} bytes" if len(value) > BYTES_SHOWN else ""
        return f"{value[:BYTES_SHOWN]!r}{more}"
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def show_table(rows: Sequence[dict[str, Any]], title: str = "") -> None:
    """Rows as a table on standard output; where that is no terminal, as wide as it needs to be."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console()
    if not out.is_terminal:
        out = Console(width=PIPED_COLUMNS)
    if not rows:
        out.print(f"{title}: no rows" if title else "no rows")
        return
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in rows[0].items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(v)) for v in row.values()))  # brackets in it are no markup
    out.print(table)


def progress() -> Progress:
    """A progress bar on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(),
    )


def size_of_text(text: str) -> int:
    """Bytes of `128MB`, `1GiB`, `4096`.  Raises click.BadParameter for anything else."""
    units = {
        "": 1,
        "B": 1,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KIB": 1 << 10,
        "MIB": 1 << 20,
        "GIB": 1 << 30,
    }
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in units or float(found[1]) <= 0:
        raise click.BadParameter(f"{text!r} is no size; write 128MB, 1GiB or a number of bytes")
    return int(float(found[1]) * units[found[2].upper()])


def json_option(command: Command) -> Command:
    """`--json`, given to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(
        command
    )


def run_argument(command: Command) -> Command:
    """The argument RUN, a path."""
    return click.argument("run", type=click.Path(path_type=Path))(command)


def lake_argument(command: Command) -> Command:
    """The argument RUN, given as `path`: the folder of a run, or the folder or URL of a lake."""
    return click.argument("path", metavar="RUN|LAKE")(command)


def set_option(command: Command) -> Command:
    """`--set NAME=VALUE`, given to the command as `settings`."""
    return click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a setting.")(
        command
    )
