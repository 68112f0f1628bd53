"""What a user sees while something goes on: a screen that changes in a terminal, sentences elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from lake.terminal import cell


class LiveScreen:
    """Use as a context manager; a subclass shows what goes on by `self._live.update`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """A sentence above the screen."""
        self._console.print(cell(sentence), soft_wrap=True, markup=False, highlight=False)
