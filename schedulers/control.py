"""The controller of a run: folds the log, dispatches at boundaries, watches the processes.

    worker, (engine), proxy, trainer, runner      (started in this order, stopped backwards)

The controller keeps no state of its own: killed and started again it folds the same log and takes
the same next decision.  An engine that dies is started again (schedulers.engine), calls wait for it at
the proxy; any other process that dies ends the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from lake import run_processes
from lake.beginning import announce, open_folder
from lake.config import Config
from lake.engine_address import EngineAddress, parse_engine
from lake.events import Event, GroupDispatched, ScheduleDecided
from lake.follow import Follower
from lake.holding import only_one
from lake.layout import Run
from lake.log import Log, now_us
from lake.metrics import write_targets
from lake.processes import Process, ProcessDied, Processes, free_port
from schedulers import prepare
from schedulers.engine import RunEngine
from schedulers.policies import boundary
from schedulers.state import TOPICS, State

POLL_S = 0.1


class Fold:
    """Follows the light topics of a log and folds them into a State."""

    def __init__(self, log: Log) -> None:
        self.state = State()
        self._follower = Follower(log, TOPICS)

    def follow(self, wait_s: float) -> bool:
        """Take in what is new, waiting for at most `wait_s`; whether there was anything."""
        read, events = self._follower.poll(wait_s)
        for event in events:
            self.state.apply(event)
        return read

    def catch_up(self) -> None:
        """Fold everything that was in the log when it was opened."""
        for event in self._follower.catch_up():
            self.state.apply(event)

    def close(self) -> None:
        self._follower.close()


class Controller:
    """One run from start (or from where it stands) to its last step."""

    def __init__(self, run: Run, config: Config, say: Callable[[str], None]) -> None:
        self._run, self._config, self._say = run, config, say
        self._log = run.open_log(config)
        announce(self._log, run, config)
        self._tasks = prepare.tasks(run, config)
        self.fold = Fold(self._log)
        self.fold.catch_up()
        self._processes = Processes()
        self._cells = run_processes.Cells(self._log)
        self._trainer: Process | None = None
        self._engine: RunEngine | None = None
        self._addresses: dict[str, str] = {}

    @property
    def state(self) -> State:
        return self.fold.state

    def _start(self, process: Process) -> Process:
        self._processes.start(process)
        self._cells.started(process)
        return process

    def start(self) -> None:
        """Start what is needed to go on.  Raises ProcessDied."""
        prepare.first_policy(self._run, self._config, self._say)
        version = max(0, self.state.published_version)
        proxy_port = free_port()
        proxy = f"http://127.0.0.1:{proxy_port}"
        engines = [parse_engine(said) for said in self._config.rollout.engines]
        if not engines:
            self._engine = RunEngine(self._run, self._config, version, free_port())
            engines = [EngineAddress(self._engine.url)]
        for worker in run_processes.workers(self._run, self._config):
            self._start(worker)
        waited = [self._start(self._engine.process)] if self._engine else []
        said = [str(engine) for engine in engines]
        waited.append(self._start(run_processes.proxy(self._run, said, proxy_port)))
        servers = dict.fromkeys(url for engine in engines for url in engine.servers)
        arguments = ["trainer", "--run", str(self._run.path)]
        arguments += [word for url in servers for word in ("--engine", url)]
        self._trainer = self._start(Process("trainer", arguments, self._run.output("trainer")))
        for process in waited:
            self._processes.wait_ready(process)
        self._start(run_processes.runner(self._run, proxy))
        self._addresses = {"engine": engines[0].url, "proxy": proxy}
        self._tell_addresses()
        write_targets(self._run.path, "proxy", [f"127.0.0.1:{proxy_port}"])

    def _tell_addresses(self) -> None:
        run_processes.write_addresses(self._run, self._processes.pids(), self._addresses)

    def _died(self, sentence: str) -> None:
        """Tell the log and the user of a process that died, whose name begins the sentence."""
        self._cells.tell(sentence.split(" ", 1)[0], "died", sentence)
        self._say(sentence)

    def dispatch(self) -> None:
        """Hand out what the policy says, once."""
        decision = boundary.decide(self.state, self._config)
        if decision is None:
            return
        numbers = {
            "waterlevel": self.state.waterlevel,
            "groups_ready": self.state.groups_ready,
            "groups_consumed": len(self.state.consumed),
            "first": decision.first,
            "count": decision.count,
            "policy_version": decision.policy_version,
        }
        events: list[Event] = [
            GroupDispatched(
                time_us=now_us(),
                group_id=f"g-{number:06d}",
                task=self._tasks[number],
                size=self._config.rollout.group_size,
                policy_version=decision.policy_version,
                boundary=decision.boundary,
            )
            for number in range(decision.first, decision.first + decision.count)
        ]
        self._log.append(events)
        self._log.append(
            [
                ScheduleDecided(
                    time_us=now_us(),
                    decision="boundary-dispatch",
                    number=decision.boundary,
                    numbers=json.dumps(numbers),
                )
            ]
        )
        for event in events:
            self.state.apply(event)

    def step(self) -> bool:
        """Follow the log, decide, look after the processes once; False when the run is done.

        Raises ProcessDied where one of them ended that must not.
        """
        while self.fold.follow(POLL_S):
            self.dispatch()
        self.dispatch()
        if self._look_at_engine():
            self._tell_addresses()
        dead = self._processes.dead(self._trainer, self._engine.process if self._engine else None)
        if dead is not None:
            raise dead.died()
        code = self._trainer.code() if self._trainer is not None else None
        if code is None:
            return True
        if code != 0 and self._trainer is not None:
            raise self._trainer.died()
        return False

    def _look_at_engine(self) -> bool:
        """Keep the engine up; whether it was started again just now."""
        if self._engine is None or not self._engine.look(self.state.published_version, self._died):
            return False
        self._cells.started(self._engine.process)
        return True

    def stop(self) -> None:
        """Stop cleanly: writers first, the worker reads the log to its end."""
        self._processes.stop()
        while self.fold.follow(POLL_S):
            pass

    def fail(self, death: ProcessDied) -> None:
        """One process is gone: stop the others, keep what the log acknowledged."""
        self._processes.kill()
        self._cells.tell(str(death).split(" ", 1)[0], "died", str(death))

    def close(self) -> None:
        """Let go of the log; whatever still runs (after an error of our own) is killed."""
        self._processes.kill()
        self.fold.close()
        self._log.close()


def drive(
    path: Path, config: Config, say: Callable[[str], None], watch: Callable[[State, Config], None]
) -> State:
    """Run or go on with the run at `path` to its end; `watch` is called about ten times a second.

    Raises ProcessDied, RunBusy, ConfigError; KeyboardInterrupt stops cleanly and is raised on.
    """
    run = Run(path)
    run_processes.check_engine(run.config() if run.config_file.exists() else config)
    config = open_folder(run, config)
    with only_one(run):
        controller = Controller(run, config, say)
        try:
            if len(controller.state.steps) < config.steps:
                controller.start()
                while controller.step():
                    watch(controller.state, config)
                controller.stop()
            watch(controller.state, config)
        except KeyboardInterrupt:
            say("stopping: the worker reads the log to its end")
            controller.stop()
            raise
        except ProcessDied as death:
            controller.fail(death)
            raise
        finally:
            controller.close()
        return controller.state


def finished(path: Path) -> bool:
    """Whether a run lies at `path` and has committed all its steps."""
    run = Run(path)
    if not run.config_file.is_file():
        return False
    config = run.config()
    log = run.open_log(config)
    fold = Fold(log)
    try:
        fold.catch_up()
        return len(fold.state.steps) >= config.steps
    finally:
        fold.close()
        log.close()
