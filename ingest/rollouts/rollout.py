"""A rollout: tasks carried out by harnesses behind the proxy, their groups in the lake, nothing trained.

    workers, (embedded engine), proxy, runner       (started in this order, stopped backwards)

    tasks.jsonl --dispatch, oldest first--> runner --executions--> worker --group.ready--> done

Started again it goes on from its log: what was handed out stays, executions that were under way are lost and
launched again.  A process that dies is started again where it was: a proxy at its old port goes on with live
executions, and their harnesses see one slow call.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ingest.rollouts import dispatching
from ingest.rollouts.progress import TOPICS, Progress
from ingest.rollouts.settings import check
from ingest.rollouts.tasks import read_tasks
from lake import run_processes
from lake.beginning import announce, copy_model, open_folder
from lake.config import Config, ConfigError
from lake.follow import Follower
from lake.holding import RunBusy, alone, only_one
from lake.layout import Run
from lake.log import Log, now_us
from lake.metrics import write_targets
from lake.processes import Process, ProcessDied, Revived, free_port
from lake.store import Store, StoreUnavailable

POLL_S = 0.1
HELD_EVERY_S = 2.0
HELD_AFTER_S = 3.0
"""A group whose executions are assessed is usually ready within a second: after this it is asked why not."""

Watch = Callable[["Rollout"], None]


def keep_tasks(run: Run, config: Config) -> list[str]:
    """The run's tasks as JSON text, one a group, kept in RUN/tasks.jsonl.

    Raises BadTask; ConfigError where the file of tasks is another than the run began with.
    """
    given = Path(config.rollout.tasks)
    if run.tasks_file.exists():
        kept = run.tasks_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        if given.is_file() and read_tasks(given) != kept:
            raise ConfigError(
                f"{given} is not as it was when {run.path} began ({run.tasks_file} has it); put it "
                "back, or begin another run"
            )
        return kept
    tasks = read_tasks(given)
    half = run.tasks_file.with_suffix(".part")
    half.write_bytes("".join(f"{task}\n" for task in tasks).encode())
    half.replace(run.tasks_file)
    return tasks


class Rollout:
    """One rollout from start (or from where it stands) to its last group."""

    def __init__(
        self, run: Run, config: Config, tasks: Sequence[str], log: Log, say: Callable[[str], None]
    ) -> None:
        self.run, self.config, self.tasks = run, config, tasks
        self._log, self._say = log, say
        self.progress = Progress()
        self.held: dict[str, str] = {}  # group -> the audits that name rows of it
        self.proxy_port = free_port()
        self._follower = Follower(log, TOPICS)
        for event in self._follower.catch_up():
            self.progress.apply(event)
        self.ready_before = frozenset(self.progress.ready)
        self._cells = run_processes.Cells(log)
        self._revived: list[Revived] = []
        self._held_at, self._settled_at = 0.0, 0.0

    @property
    def restarts(self) -> int:
        """How often a process was started again."""
        return sum(r.restarts for r in self._revived)

    @property
    def proxy_url(self) -> str:
        return f"http://127.0.0.1:{self.proxy_port}"

    def is_done(self) -> bool:
        """Whether every task's group is ready, or held back by an audit."""
        return dispatching.is_done(self.progress, len(self.tasks), self.held)

    def _start(self, process: Process) -> Process:
        process.hint = f" The same command goes on from its log: headrace rollout {self.run.path}"
        process.start()
        self._revived.append(Revived(process))
        self._cells.started(process)
        return process

    def start(self) -> None:
        """Start all processes.  Raises ProcessDied."""
        for worker in run_processes.workers(self.run, self.config):
            self._start(worker)
        engines, waited = list(self.config.rollout.engines), []
        if not engines:
            port = free_port()
            engines = [f"http://127.0.0.1:{port}"]
            waited.append(self._start(run_processes.engine(self.run, self.config, 0, port)))
        waited.append(self._start(run_processes.proxy(self.run, engines, self.proxy_port)))
        for process in waited:
            process.wait_ready()
        self._start(run_processes.runner(self.run, self.proxy_url))
        self._tell_addresses()
        self.dispatch()
        write_targets(self.run.path, "proxy", [f"127.0.0.1:{self.proxy_port}"])

    def _tell_addresses(self) -> None:
        pids = {r.process.name: r.process.pid for r in self._revived}
        run_processes.write_addresses(self.run, pids, {"proxy": self.proxy_url})

    def dispatch(self) -> None:
        """Hand out what there is room for."""
        groups = dispatching.next_groups(
            self.progress, self.tasks, self.config, now_us=now_us(), held=self.held
        )
        if groups:
            self._log.append(groups)
            for event in groups:
                self.progress.apply(event)

    def step(self) -> bool:
        """Follow the log, hand out, look after the processes once; False when all is done.

        Raises ProcessDied where one of them cannot be kept up.
        """
        read, events = self._follower.poll(POLL_S)
        for event in events:
            self.progress.apply(event)
        if read:
            self._settled_at = time.monotonic()
        if self._look_at_held() or read:
            self.dispatch()
        again = [revived.process for revived in self._revived if revived.look(self._died)]
        for process in again:
            self._cells.started(process)
        if again:
            self._tell_addresses()
        return not self.is_done()

    def _died(self, sentence: str) -> None:
        """Tell the log and the user of a process that died, whose name begins the sentence."""
        self._cells.tell(sentence.split(" ", 1)[0], "died", sentence)
        self._say(sentence)

    def _look_at_held(self) -> bool:
        """Find the groups that an audit keeps from being ready, where some hang; whether that changed."""
        now = time.monotonic()
        if now - self._settled_at < HELD_AFTER_S or now - self._held_at < HELD_EVERY_S:
            return False
        self._held_at, before = now, self.held
        if waiting := self.progress.settled() - self.progress.ready:
            found = held_back(self.run)
            self.held = {g: found[g] for g in sorted(waiting & found.keys())}
        return self.held != before

    def stop(self) -> None:
        """Stop cleanly, the last started first: the worker reads the log to its end."""
        for revived in reversed(self._revived):
            revived.process.ask_to_stop()
            revived.process.end()
        while self._follower.poll(POLL_S)[0]:
            pass

    def fail(self, death: ProcessDied) -> None:
        """One process cannot be kept up: end the others, keep what the log acknowledged."""
        for revived in reversed(self._revived):
            revived.process.ask_to_stop()
        self._cells.tell(str(death).split(" ", 1)[0], "died", str(death))

    def close(self) -> None:
        """Kill whatever still runs (after an error), let go of the log."""
        for revived in self._revived:
            revived.process.end(0.0)
        self._follower.close()


def held_back(run: Run) -> dict[str, str]:
    """Group -> the audits that name rows of it, as the worker keeps them; empty where the lake is away."""
    try:
        table = Store(run.lake).existing("sets/default/violations")
        rows = table.read(columns=["group_id", "audit"]).to_pylist() if table is not None else []
    except StoreUnavailable:
        return {}
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["group_id"], set()).add(row["audit"])
    return {group: ", ".join(sorted(audits)) for group, audits in found.items()}


@dataclass(frozen=True)
class Done:
    """A rollout at its end, or where it was stopped."""

    progress: Progress
    tasks: int
    held: dict[str, str]
    restarts: int


def drive(path: Path, config: Config, say: Callable[[str], None], watch: Watch) -> Done:
    """Begin or go on with the rollout at `path`, to its end; `watch` is called about ten times a second.

    Raises ConfigError, BadTask, BadCommand before anything is made or started; ProcessDied, RunBusy;
    KeyboardInterrupt stops cleanly and is raised on.
    """
    run = Run(path)
    if config.rollout.harness != "command" or not config.rollout.tasks:
        raise ConfigError(f"{path} is a run without tasks for a command line; give another folder")
    fresh = read_tasks(Path(config.rollout.tasks)) if not run.config_file.exists() else []
    for note in check(config, fresh):
        say(note)
    if not config.rollout.engines:
        run_processes.check_engine(run.config() if run.config_file.exists() else config)
    kept = open_folder(run, config)
    engines = config.rollout.engines  # the only setting that may change from one start to the next
    config = msgspec.structs.replace(kept, rollout=msgspec.structs.replace(kept.rollout, engines=engines))
    served = RunBusy(f"a `headrace proxy` serves {run.path}; stop it first")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with only_one(run), alone(run.path / "proxy.lock", served), closing(run.open_log(kept)) as log:
        tasks = keep_tasks(run, config)
        copy_model(
            Path(config.model.weights),
            run.weights(0),
            setting="--model",
            with_weights=not config.rollout.engines,
        )
        announce(log, run, kept)
        rollout = Rollout(run, config, tasks, log, say)
        try:
            if not rollout.is_done():
                rollout.start()
                while rollout.step():
                    watch(rollout)
                rollout.stop()
            watch(rollout)
        except KeyboardInterrupt:
            say("stopping: harnesses are ended, the worker reads the log to its end")
            rollout.stop()
            raise
        except ProcessDied as death:
            rollout.fail(death)
            raise
        finally:
            rollout.close()
        return Done(rollout.progress, len(tasks), rollout.held, rollout.restarts)


def summary(run: Run, done: Done, seconds: float) -> dict[str, Any]:
    """What `headrace rollout --json` says; `seconds` of this call."""
    from lake.query import open_lake

    with closing(open_lake(run.path)) as lake:
        (tokens,) = lake.rows(
            "select count(*) calls, coalesce(sum(n_context + n_output), 0)::bigint tokens, "
            "coalesce(sum(n_output), 0)::bigint sampled from event_calls"
        )
    progress, scores = done.progress, done.progress.scores()
    return {
        "run": str(run.path),
        "groups": done.tasks,
        "ready": len(progress.ready),
        "held": done.held,
        "executions": dict(sorted(progress.statuses().items())),
        "assessments": dict(sorted(progress.assessments().items())),
        "score_mean": sum(scores) / len(scores) if scores else None,
        **tokens,
        "restarts": done.restarts,
        "seconds": round(seconds, 1),
    }
