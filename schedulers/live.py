"""What a user sees while a run goes on: a progress bar and the newest steps; lines where no terminal is."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lake.config import Config
from lake.live_screen import LiveScreen
from schedulers.state import State, Step

ROWS = 10
REFRESH_S = 0.25


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def step_line(step: Step, state: State) -> str:
    return (
        f"step {step.step:3d}  score {text(step.score)}  staleness {step.staleness:.2f}  "
        f"waterlevel {state.waterlevel}  tokens {step.tokens}  ready groups {state.groups_ready}"
    )


class Display(LiveScreen):
    """`show(state, config)` as often as you like; use as a context manager."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("[bold]training[/bold]"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
            TimeElapsedColumn(), console=console,
        )  # fmt: skip
        self._task = self._progress.add_task("steps", total=None)
        self._printed = 0
        self._shown_s = 0.0

    def show(self, state: State, config: Config) -> None:
        if not self._console.is_terminal:
            for step in state.steps[self._printed :]:
                self._console.print(step_line(step, state), highlight=False, soft_wrap=True)
            self._printed = len(state.steps)
            return
        now = time.monotonic()
        if now - self._shown_s < REFRESH_S and len(state.steps) < config.steps:
            return
        self._shown_s = now
        self._progress.update(self._task, total=config.steps, completed=len(state.steps))
        self._live.update(Group(self._table(state), self._progress))

    def _table(self, state: State) -> Table:
        table = Table(
            title=(
                f"policy version {max(0, state.published_version)} · waterlevel {state.waterlevel} · "
                f"{len(state.live)} executions live · {state.groups_ready} groups ready · "
                f"{len(state.consumed)} of {len(state.groups)} groups consumed"
            ),
            title_justify="left",
        )
        for name in ("step", "score", "staleness", "loss", "tokens", "targets", "seconds"):
            table.add_column(name, justify="right")
        shown = state.steps[-ROWS:]
        before = {s.step: s.at_us for s in state.steps}
        for step in shown:
            since = before.get(step.step - 1, state.first_us)
            table.add_row(
                str(step.step), text(step.score), text(step.staleness, 2), text(step.loss, 5),
                str(step.tokens), str(step.targets), f"{(step.at_us - since) / 1e6:.1f}",
            )  # fmt: skip
        return table
