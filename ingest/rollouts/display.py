"""What a user sees while a rollout goes on: one table that changes; lines where no terminal is."""

from __future__ import annotations

import time
import urllib.error

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ingest.rollouts.dispatching import group_name, under_way
from ingest.rollouts.progress import Known
from ingest.rollouts.rollout import Rollout
from lake.live_screen import LiveScreen
from lake.log import now_us
from lake.processes import ask

OLDEST = 5
REFRESH_S = 0.25
METRICS_EVERY_S = 1.0
METRICS_S = 0.5


class Traffic:
    """Calls and tokens as the proxy counts them; they go on where one that was started again begins at 0."""

    def __init__(self) -> None:
        self._before = {"calls": 0.0, "in": 0.0, "out": 0.0}
        self._now = dict(self._before)
        self._at = 0.0

    def look(self, proxy: str) -> dict[str, int]:
        """Calls that ended, tokens in and out, of this session; asks the proxy once a second at most."""
        if time.monotonic() - self._at >= METRICS_EVERY_S:
            self._at = time.monotonic()
            found = _scrape(proxy)
            if found is not None:
                if found["calls"] < self._now["calls"]:
                    self._before = {n: self._before[n] + self._now[n] for n in self._before}
                self._now = found
        return {n: int(self._before[n] + self._now[n]) for n in self._before}


def _scrape(proxy: str) -> dict[str, float] | None:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = ask(f"{proxy}/metrics", METRICS_S).decode()
    except (urllib.error.URLError, OSError):
        return None
    found = {"calls": 0.0, "in": 0.0, "out": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "headrace_proxy_calls_total":
                found["calls"] += sample.value
            elif sample.name == "headrace_proxy_tokens_total":
                found[sample.labels["direction"]] += sample.value
    return found


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3f}" if values else "-"


def _age(execution: Known) -> str:
    seconds = max(0, (now_us() - execution.launched_us) // 1_000_000)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Display(LiveScreen):
    """`show(rollout)` as often as you like; use as a context manager."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bar = Progress(
            TextColumn("[bold]groups ready[/bold]"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("groups", total=None)
        self._traffic = Traffic()
        self._told: set[str] | None = None
        self._shown_s = 0.0

    def show(self, rollout: Rollout) -> None:
        """Bring it up to date."""
        if not self._console.is_terminal:
            self._lines(rollout)
            return
        done = rollout.is_done()
        if time.monotonic() - self._shown_s < REFRESH_S and not done:
            return
        self._shown_s = time.monotonic()
        finished = len(rollout.progress.ready) + len(rollout.held)
        self._bar.update(self._task, total=len(rollout.tasks), completed=finished)
        self._live.update(Group(self._table(rollout), self._bar))

    def _lines(self, rollout: Rollout) -> None:
        progress, told = rollout.progress, self._told
        if told is None:
            told = self._told = set(rollout.ready_before)
            if told:
                self.say(f"{len(told)} of {len(rollout.tasks)} groups are ready already")
        for group in sorted(progress.ready - told):
            told.add(group)
            values = [e.score.value for e in progress.of(group) if e.score and e.score.value is not None]
            ready = f"{len(told & progress.ready)} of {len(rollout.tasks)}"
            self.say(f"{group} is ready ({ready})  scored {len(values)}  mean {_mean(values)}")
        for group in sorted(rollout.held.keys() - told):
            told.add(group)
            self.say(f"{group} is held back: {rollout.held[group]}; see headrace audit {rollout.run.path}")

    def _table(self, rollout: Rollout) -> Table:
        progress, traffic = rollout.progress, self._traffic.look(rollout.proxy_url)
        live, said = progress.live(), progress.assessments()
        calls = max(traffic["calls"], progress.calls())
        level = under_way(progress, len(rollout.tasks), rollout.held)
        waiting = sum(group_name(n) not in progress.groups for n in range(len(rollout.tasks)))
        endings = ", ".join(f"{n} {status}" for status, n in sorted(progress.statuses().items())) or "none"
        table = Table(title=f"rollout {rollout.run.path}", title_justify="left", show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        rows = (
            ("groups", f"{level} under way, {waiting} waiting, {len(rollout.held)} held back"),
            ("executions", f"{len(live)} live; ended: {endings}"),
            ("calls", f"{calls} ({traffic['in']} tokens in, {traffic['out']} sampled since the start)"),
            (
                "scores",
                f"mean {_mean(progress.scores())}; {said['scored']} scored, {said['partial']} partial, "
                f"{said['missing']} missing",
            ),
            ("oldest", "\n".join(f"{_age(e)}  {e.execution_id}" for e in live[:OLDEST]) or "-"),
            ("proxy", f"{rollout.proxy_url}  restarts {rollout.restarts}"),
        )
        for name, text in rows:
            table.add_row(name, text)
        return table
