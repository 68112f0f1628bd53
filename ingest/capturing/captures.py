"""The captures of a run in one process: one log, one group commit, one look at who is launched.

    Captures(run)   makes the run's folder and its first event where there are none
    .open(e)        group.dispatched (the first of a group), execution.launched --> Capture
                    of an execution that is live already: its calls are read back, and it goes on

Groups carry boundary -1 (ingest.rollouts.launching.OUTSIDE): a runner neither launches nor heals them.
One execution is captured by one process at a time: RUN/captures/EXECUTION.lock is held, on this machine.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ingest.capturing.appending import Appender
from ingest.capturing.arrays import CaptureError
from ingest.capturing.capture import Capture, Version
from ingest.rollouts.launching import OUTSIDE
from ingest.rollouts.progress import TOPICS, Known, Progress
from lake.beginning import announce, open_folder
from lake.config import Config
from lake.events import ROLES, Event, ExecutionLaunched, GroupDispatched
from lake.follow import Follower
from lake.holding import RunBusy, alone
from lake.layout import Run
from lake.log import Log, Partition, now_us

CELL = "capture"
LAUNCH_S = 60.0
"""To wait for others who launch executions of the run just now."""
PATIENCE_S = 60.0
"""To wait for a log that is away; the log's own wait for its last try comes on top."""
LOOK_S = 0.02
_NAME = re.compile(r"[A-Za-z0-9._~:@+-]{1,200}")  # an execution's: it stands in URLs and file names


@dataclass(frozen=True)
class _Wanted:
    """An execution as its caller names it."""

    execution: str
    group: str
    task: Any
    size: int | None
    index: int | None
    version: Version

    def check(self) -> None:
        for name, value in (("execution", self.execution), ("group", self.group)):
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                said = "1 to 200 letters, digits and . _ ~ : @ + - are needed"
                raise CaptureError(f"{name} is {value!r}; {said}")


class Captures:
    """Opens captures of a run; use it with `with`.  Methods may be called from several threads.

    run   its folder; made where there is none, as a run whose log is the SQLite file in it
    log   a log URL, for a run that is made (`kafka://host:port` for rollouts on many machines)
    Raises ConfigError where the folder holds something else, CaptureError where its log is another.
    """

    def __init__(self, run: str | Path, *, log: str = "", patience_s: float = PATIENCE_S) -> None:
        self.run = Run(Path(run))
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._progress = Progress()
        self._read: dict[Partition, int] | None = None
        self._captures: set[Capture] = set()  # that are open
        with ExitStack() as stack:
            config = self._folder(log)
            self._log: Log = stack.enter_context(closing(self.run.open_log(config)))
            if not any(self._log.end_offsets("policy").values()):
                announce(self._log, self.run, config)
            self._appender = Appender(self._log, patience_s=patience_s)
            self._stack = stack.pop_all()

    def _folder(self, log: str) -> Config:
        """The run's configuration; of several processes that come at once one makes it."""
        self.run.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.run.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            is_new = not self.run.config_file.exists()
            config = open_folder(self.run, Config(name=self.run.path.name or "run", log=log))
        finally:
            os.close(handle)
        if log and not is_new and config.log != log and not config.log.startswith(f"{log}/"):
            raise CaptureError(
                f"{self.run.path} has the log {self.run.log_url(config)}; leave log={log!r} out, or give "
                "another folder"
            )
        return config

    def open(
        self,
        execution: str,
        *,
        group: str | None = None,
        task: Any = None,
        size: int | None = None,
        index: int | None = None,
        role: str = "main",
        version: Version = None,
        engine: str = "",
    ) -> Capture:
        """Capture one execution, from its start or on after a crash.

        group    the executions of one task that are compared with each other (default: one of its own)
        task     of the group, anything that is JSON (default: {"id": group})
        size     how many executions the group has (default: 1, or what it has)
        index    the execution's place in the group, from 0 (default: the next that is free; give it where
                 several machines launch executions of one group)
        role, version, engine    of calls that do not say them
        Raises CaptureError for an execution that has ended, is of another group or captured by somebody
        else now, and for a group that is full, of another task or size, or the run's own.
        """
        group = execution if group is None else group
        wanted = _Wanted(execution, group, task, size, index, version)
        wanted.check()
        if role not in ROLES:
            raise CaptureError(f"role is {role!r}, not one of {', '.join(ROLES)}")
        with ExitStack() as stack:
            stack.enter_context(_alone(self.run.path / "captures", execution))
            with self._launching() as progress:
                known = progress.executions.get(execution)
                goes_on = known is not None and known.launched_us > 0
                if known is None or not goes_on:
                    known = self._launch(progress, wanted)
                else:
                    _check_goes_on(known, group)
                    _check_group(progress.groups.get(group), wanted)
            capture = Capture(
                self._appender,
                group_id=group,
                execution_id=execution,
                index=known.index,
                role=role,
                version=version,
                engine=engine,
                closed=stack.pop_all().close,
            )
        self._captures.add(capture)
        capture.then(lambda: self._captures.discard(capture))
        if goes_on:
            self._recall(capture, known)
        return capture

    def _launch(self, progress: Progress, wanted: _Wanted) -> Known:
        """Tell the log of an execution, and of its group where that is new."""
        group, events = wanted.group, list[Event]()
        dispatched = progress.groups.get(group)
        if dispatched is None:
            dispatched = _dispatched(wanted)
            events.append(dispatched)
        _check_group(dispatched, wanted)
        taken = {e.index for e in progress.of(group)}
        free = next((k for k in range(dispatched.size) if k not in taken), None)
        place = free if wanted.index is None else wanted.index
        if place is None or place in taken or not 0 <= place < dispatched.size:
            which = "no place is free" if wanted.index is None else f"place {place!r} is not free"
            raise CaptureError(
                f"group {group} has {dispatched.size} executions, {len(taken)} are launched, {which}; give "
                "another group, or say its size with its first execution"
            )
        launched = ExecutionLaunched(
            time_us=now_us(), group_id=group, execution_id=wanted.execution, index=place, cell=CELL
        )
        events.append(launched)
        self._appender.append(events)
        for event in events:
            progress.apply(event)
        return progress.executions[wanted.execution]

    @contextmanager
    def _launching(self) -> Iterator[Progress]:
        """What the log says now; nobody else on this machine launches executions of the run meanwhile."""
        busy = RunBusy(f"{self.run.path}: others launch executions for {LAUNCH_S:g} s now; try again")
        until = time.monotonic() + LAUNCH_S
        with self._lock, ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(alone(self.run.path / "outside.lock", busy))
                    break
                except RunBusy:
                    if time.monotonic() > until:
                        raise
                    time.sleep(LOOK_S)
            with closing(Follower(self._log, TOPICS, self._read)) as follower:
                for event in follower.catch_up():
                    self._progress.apply(event)
                self._read = follower.positions()
            yield self._progress

    def _recall(self, capture: Capture, known: Known) -> None:
        from ingest.proxy.recall import Since, recall  # what a proxy needs to go on, and seldom needed here

        since = Since(known.group_id, known.launched_us)
        try:
            found = recall(self._log, {known.execution_id: since})[known.execution_id]
            capture.recall(found.calls, found.returned, known.score)
        except BaseException:
            capture.close()
            raise

    def close(self) -> None:
        """Let go of the captures that are open, which does not end them, and close the log."""
        for each in list(self._captures):
            each.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def capture(run: str | Path | Captures, execution: str, *, log: str = "", **options: Any) -> Capture:
    """See `headrace.capture`."""
    if isinstance(run, Captures):
        if log:
            raise CaptureError(f"log={log!r} is for a run's folder; this run is open already")
        return run.open(execution, **options)
    with ExitStack() as stack:
        made = stack.enter_context(Captures(run, log=log)).open(execution, **options)
        made.then(stack.pop_all().close)
        return made


def _dispatched(wanted: _Wanted) -> GroupDispatched:
    """A group that is handed out by nobody of the run."""
    size = 1 if wanted.size is None else wanted.size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise CaptureError(f"size is {size!r}; a group has at least 1 execution")
    return GroupDispatched(
        time_us=now_us(),
        group_id=wanted.group,
        task=_text({"id": wanted.group} if wanted.task is None else wanted.task),
        size=size,
        policy_version=wanted.version if isinstance(wanted.version, int) else 0,
        boundary=OUTSIDE,
    )


def _text(task: Any) -> str:
    try:
        return msgspec.json.encode(task).decode()
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise CaptureError(f"task is not JSON: {error}") from error


def _check_group(dispatched: GroupDispatched | None, wanted: _Wanted) -> None:
    if dispatched is None:
        return
    group, size = wanted.group, wanted.size
    if dispatched.boundary != OUTSIDE:
        raise CaptureError(f"group {group} is the run's own: its runner launches it; give another group")
    if wanted.task is not None and dispatched.task != _text(wanted.task):
        raise CaptureError(f"group {group} is of another task, {dispatched.task[:200]}; give another group")
    if size is not None and size != dispatched.size:
        raise CaptureError(f"group {group} has {dispatched.size} executions, not {size!r}; leave size out")


def _check_goes_on(known: Known, group: str) -> None:
    if known.status:
        raise CaptureError(
            f"execution {known.execution_id} has ended ({known.status}, {known.calls} calls); give another"
        )
    if known.group_id != group:
        raise CaptureError(f"execution {known.execution_id} is of group {known.group_id}, not {group}")


@contextmanager
def _alone(folder: Path, execution: str) -> Iterator[None]:
    """Hold an execution; its file is gone afterwards.  Raises CaptureError where somebody else holds it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{execution}.lock"
    busy = CaptureError(f"execution {execution} is captured by another process or thread; give another")
    while True:
        with path.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise busy from error
            if not _is_at(handle.fileno(), path):
                continue  # whoever had it took the file away before we got it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
