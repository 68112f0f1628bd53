"""The harness `command`: any program, started once an execution; and the scorer that judges what it left.

    RUN/workspaces/EXECUTION/
        work/          {workspace}: where both run; begins as a copy of `rollout.template`, then the task's
                       own `template`, then its `files`
        home/          HOME, unless `rollout.home` is `shared`
        task.json      {task}; prompt.txt is {prompt_file}
        output.log     what the harness printed; output.log.1 is the older half where there was too much
        score.out      what the scorer printed, score.err its standard error

How an execution ends (lake.events: unscored, failed and zero are never the same thing):

    exit status in `rollout.exit_codes`   completed           scored by the scorer, 0 included
    harness_timeout_s is over             harness_timeout     partial: the workspace is scored as it stands
    overall_timeout_s is over             overall_timeout     missing
    any other exit status, or a signal    crashed             missing; the detail has its last lines
    the scorer crashes, hangs, says no number                 missing, and why
    no scorer                                                 missing: the execution is unscored

A program of an agent that ends otherwise than with 0 after good work names its statuses in
`rollout.exit_codes` (OpenCode ends with 1 after a compaction, Codex where the token limit cut it).
Nothing of either program outlives it: see `ingest.rollouts.keeper`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from ingest.rollouts.command_line import (
    HARNESS_NAMES,
    SCORER_NAMES,
    BadCommand,
    CommandLine,
    check_environment,
    harness_environment,
    last_lines,
    score_of,
    scorer_environment,
)
from ingest.rollouts.harnesses import (
    Assessed,
    Assignment,
    HarnessCrashed,
    HarnessError,
    ProxyLost,
    Setting,
    Unscored,
)
from ingest.rollouts.keeper import KILL_S_MAX, Ended, Kept
from ingest.rollouts.tasks import Task, lay_out, parse_task
from lake.config import Rollout

EVALUATOR = "scorer"
KEEPER_S = 10.0  # beyond what a keeper itself waits for


class ScorerFailed(Exception):
    """The scorer ended badly: how, and what it said last."""


def lines_of(rollout: Rollout) -> tuple[CommandLine, CommandLine | None]:
    """The command lines of harness and scorer.  Raises BadCommand for one that cannot be."""
    command = CommandLine.parse(rollout.command, HARNESS_NAMES, "rollout.command")
    check_environment(rollout.environment)
    for name, folder in (("template", rollout.template), ("home", rollout.home)):
        if (
            folder
            and (name, folder) not in {("home", "own"), ("home", "shared")}
            and not Path(folder).is_dir()
        ):
            also = "`own`, `shared` or " if name == "home" else ""
            raise BadCommand(f"rollout.{name} is {folder!r}, which is no folder; give {also}a folder to copy")
    if not rollout.scorer:
        return command, None
    return command, CommandLine.parse(rollout.scorer, SCORER_NAMES, "rollout.scorer")


async def keep(kept: Kept) -> Ended:
    """Run a command line under a keeper.  Cancelled, it returns when nothing of it is left."""
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ingest.rollouts.keeper",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    talk = asyncio.ensure_future(keeper.communicate(json.dumps(asdict(kept)).encode()))
    try:
        said, _ = await asyncio.shield(talk)
    except asyncio.CancelledError:
        if keeper.returncode is None:
            keeper.terminate()
        _, left = await asyncio.wait({talk}, timeout=kept.stop_s + KILL_S_MAX + KEEPER_S)
        if left and keeper.returncode is None:
            keeper.kill()
        raise
    try:
        return msgspec.json.decode(said, type=Ended)
    except msgspec.MsgspecError:
        return Ended(code=None, failed=f"its keeper was ended from outside, with status {keeper.returncode}")


def ending(ended: Ended, name: str) -> str:
    """How a program ended, in a sentence, and what it said last."""
    if ended.code is None:
        how = ended.failed
    elif ended.code < 0:
        how = f"{name} was ended by {signal.Signals(-ended.code).name}"
    else:
        how = f"{name} ended with status {ended.code}"
    said = last_lines(ended.errors_tail) or last_lines(ended.tail)
    return f"{how}; it last said: {said}" if said else f"{how}; it said nothing"


class CommandedExecution:
    """One execution, for the runner."""

    def __init__(self, harness: Commanded, assignment: Assignment) -> None:
        self._harness, self._assignment = harness, assignment
        self._task = parse_task(assignment.task)
        self.folder = harness.setting.workspaces.absolute() / assignment.execution_id
        self._status = "harness_timeout"  # until `run` has come to its end
        self._code: int | None = None
        rollout = harness.setting.rollout
        self._values = {
            "prompt": self._task.prompt,
            "prompt_file": str(self.folder / "prompt.txt"),
            "task": str(self.folder / "task.json"),
            "base_url": assignment.base_url,
            "api_key": assignment.api_key,
            "model": harness.setting.model,
            "workspace": str(self.folder / "work"),
            "execution": assignment.execution_id,
            "output": str(self.folder / "output.log"),
            "here": rollout.here or os.getcwd(),
        }

    def _home(self) -> Path | None:
        return None if self._harness.setting.rollout.home == "shared" else self.folder / "home"

    async def run(self) -> str:
        """`completed`.  Raises HarnessCrashed, ProxyLost where the proxy is away as it crashes, OSError."""
        rollout, home = self._harness.setting.rollout, self._home()
        await asyncio.to_thread(fill_folder, self.folder, self._task, self._assignment.task, rollout)
        environment = harness_environment(
            os.environ, self._values, rollout.environment, str(home) if home else ""
        )
        line = self._harness.command
        ended = await keep(self._kept(line, environment, "output.log"))
        self._code = ended.code
        if ended.failed and ended.code is not None:
            raise HarnessCrashed(ended.failed)
        if ended.code not in rollout.exit_codes:
            await self._proxy_is_there()
            raise HarnessCrashed(ending(ended, "it"))
        self._status = "completed"
        return self._status

    def _kept(self, line: CommandLine, environment: dict[str, str], output: str, errors: str = "") -> Kept:
        rollout, words = self._harness.setting.rollout, line.fill(self._values)
        return Kept(
            argv=[program(words[0], self._values["here"], environment), *words[1:]],
            cwd=self._values["workspace"],
            environment=environment,
            output=str(self.folder / output),
            errors=str(self.folder / errors) if errors else "",
            output_bytes_max=rollout.output_bytes_max,
            stop_s=rollout.stop_s,
            parent=os.getpid(),
        )

    async def _proxy_is_there(self) -> None:
        """Raises ProxyLost where it is not: then the crash was the run's own doing."""
        proxy = self._assignment.base_url.rsplit("/x/", 1)[0]
        try:
            limit = aiohttp.ClientTimeout(total=10)
            async with self._harness.setting.http.get(f"{proxy}/health", timeout=limit) as response:
                if response.status == 200:
                    return
                raise ProxyLost(f"{proxy}/health: {response.status} as the harness crashed")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ProxyLost(f"{proxy}: {type(error).__name__}: {error} as the harness crashed") from error

    async def assess(self) -> Assessed:
        """What the scorer says.  Raises Unscored without one, NoScore, ScorerFailed."""
        scorer = self._harness.scorer
        if scorer is None:
            raise Unscored("the run has no scorer (rollout.scorer)")
        environment = scorer_environment(os.environ, self._values, self._status, self._code)
        ended = await keep(self._kept(scorer, environment, "score.out", "score.err"))
        if ended.code != 0 or ended.failed:
            raise ScorerFailed(ending(ended, "the scorer"))
        value, detail = score_of(ended.tail)
        return Assessed(value, detail)


def program(word: str, here: str, environment: dict[str, str]) -> str:
    """The program of a command line: with a / relative to where it was written, else from PATH."""
    if "/" in word:
        return os.path.join(here, word)
    return shutil.which(word, path=environment.get("PATH", os.defpath)) or word


def fill_folder(folder: Path, task: Task, text: str, rollout: Rollout) -> None:
    """Make an execution's folder.  Raises OSError, BadTask; FileExistsError where there is one already."""
    folder.mkdir(parents=True)
    copy = partial(shutil.copytree, symlinks=True, dirs_exist_ok=True)
    work = folder / "work"
    work.mkdir()
    for template in filter(None, (rollout.template, task.template)):
        copy(template, work)
    lay_out(task.files, work)
    if rollout.home == "own":
        (folder / "home").mkdir()
    elif rollout.home != "shared":
        copy(rollout.home, folder / "home")
    (folder / "task.json").write_text(text, encoding="utf-8")
    (folder / "prompt.txt").write_text(task.prompt, encoding="utf-8", newline="")


class Commanded:
    """The harness named `command`.  Raises HarnessError for command lines that cannot be."""

    evaluator = EVALUATOR

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        try:
            self.command, self.scorer = lines_of(setting.rollout)
        except BadCommand as error:
            raise HarnessError(str(error)) from error

    def prepare(self, assignment: Assignment) -> CommandedExecution:
        """Raises BadTask where the task has no prompt."""
        return CommandedExecution(self, assignment)
