"""The console of `headrace sql RUN`: lines with completion, history and colours; answers below them.

    Console(answers, "runs/demo").run()

A statement ends with `;` and may take several lines; a line that begins with a dot is a command.  Ctrl-C
stops the query that runs, and the console goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from pygments.lexers.sql import SqlLexer

from lake.console_commands import Commands
from lake.console_completion import SqlCompleter
from lake.output import Answers, standard_output
from lake.query_errors import QueryError, QueryStopped
from lake.statements import pieces, split
from lake.stopping import QueryHangs

HISTORY_BYTES_MAX = 1 << 20
NAME_MAX = 24  # of the run, in the prompt


def history_file() -> Path:
    """Where the console keeps what was typed: XDG_STATE_HOME, or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return folder / "headrace" / "sql_history"


def open_history(path: Path) -> History:
    """The history in a file that only its user reads, its older half left out where it is long; in memory
    where the file cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        held = path.read_bytes()
        if len(held) > HISTORY_BYTES_MAX:
            start = held.find(b"\n\n# ", len(held) - HISTORY_BYTES_MAX // 2)
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            part.touch(mode=0o600)
            part.write_bytes(held[max(start, 0) + 1 :] if start >= 0 else b"")
            part.replace(path)
        with path.open("ab"):
            return FileHistory(str(path))
    except OSError as error:
        click.echo(f"the history is not kept: {error}", err=True)
        return InMemoryHistory()


def finished(text: str) -> bool:
    """Whether Enter ends what was typed: a command, nothing, or statements of which the last has its `;`."""
    stripped = text.strip()
    return not stripped or stripped.startswith(".") or (bool(split(text)[0]) and not split(text)[1])


class Console:
    """Reads statements and commands, and answers them, until it is left."""

    def __init__(
        self, answers: Answers, path: str, *, source: Input | None = None, screen: Output | None = None
    ) -> None:
        """`path` names the run in the prompt; `source` and `screen` stand in for the terminal."""
        self._answers, self._commands = answers, Commands(answers)
        name = Path(path.rstrip("/")).name or path
        self._prompt = f"{name if len(name) <= NAME_MAX else name[: NAME_MAX - 3] + '...'}> "
        self._session: PromptSession[str] = PromptSession(
            history=open_history(history_file()),
            completer=SqlCompleter(answers.lake),
            lexer=PygmentsLexer(SqlLexer),
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=lambda width, _line, _wraps: "> ".rjust(width),
            complete_while_typing=True,
            input=source,
            output=screen,
        )

    def run(self) -> None:
        """Until `.quit` or Ctrl-D."""
        lake = self._answers.lake
        click.echo(
            f"{lake.root}, set {lake.params.set_name}: {len(lake.names())} tables and models, read-only.  "
            "`.tables` lists them, `.help` helps, `.quit` leaves."
        )
        while True:
            try:
                text = self._session.prompt(self._prompt)
            except KeyboardInterrupt:
                continue  # the line is given up
            except EOFError:
                return
            if not self._answer(text):
                return

    def _answer(self, text: str) -> bool:
        """Answer what was typed, to the first error; whether to go on."""
        try:
            for piece in pieces(text):
                if piece.startswith("."):
                    if not self._commands.run(piece):
                        return False
                else:
                    self._answers.answer(piece, standard_output())
        except QueryHangs:
            raise
        except (QueryError, QueryStopped) as error:
            click.secho(str(error), fg="red", err=True)
        except KeyboardInterrupt:
            click.secho("interrupted", fg="red", err=True)
        return True


def _keys() -> KeyBindings:
    """Enter ends a statement that has its semicolon, and begins a line in one that has not."""
    keys = KeyBindings()

    @Condition
    def ends() -> bool:
        from prompt_toolkit.application import get_app

        return finished(get_app().current_buffer.text)

    @keys.add("enter", filter=ends)
    def _accept(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return keys
