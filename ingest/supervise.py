"""Several ingest workers of one command: started, looked after, started again when one dies.

    headrace ingest RUN --workers 4

On Kafka the workers are members of one consumer group, so that others on other machines may join them;
on SQLite each has its share of the lanes.  A worker that dies is started again after a pause; one that
dies too often (lake.processes.DEATHS_MAX) ends the command with what it last said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

from ingest.lanes import has_groups
from lake.events import TOPICS
from lake.holding import only_one
from lake.layout import Run
from lake.log import Log, LogUnavailable, Partition
from lake.processes import Process, Revived
from lake.store import Store, StoreUnavailable
from lake.tables import SCHEMAS, app_id

LOOK_EVERY_S = 1.0


@dataclass
class Standing:
    """How far the lake is: for each partition where the log ends and where the lake stands."""

    ends: dict[Partition, int] = field(default_factory=dict)
    lake: dict[Partition, int] = field(default_factory=dict)

    def lag(self, topic: str | None = None) -> int:
        """Records that the lake does not hold yet."""
        return sum(max(0, end - self.lake[p]) for p, end in self.ends.items() if topic in (None, p[0]))

    def rows(self) -> list[dict[str, int | str]]:
        """One row a topic, for a table."""
        return [
            {
                "topic": topic,
                "partitions": sum(t == topic for t, _ in self.ends),
                "log": sum(end for (t, _), end in self.ends.items() if t == topic),
                "lake": sum(at for (t, _), at in self.lake.items() if t == topic),
                "lag": self.lag(topic),
            }
            for topic in TOPICS
        ]


class Watch:
    """Looks at a log and its lake from outside."""

    def __init__(self, log: Log, store: Store) -> None:
        self._log = log
        self._tables = {t: store.table(f"events/{t}", SCHEMAS[t]) for t in TOPICS}

    def look(self) -> Standing:
        """Raises LogUnavailable, StoreUnavailable."""
        standing = Standing()
        for topic, table in self._tables.items():
            table.refresh()
            for partition, end in self._log.end_offsets(topic).items():
                standing.ends[topic, partition] = end
                standing.lake[topic, partition] = table.offset(app_id(topic, partition)) or 0
        return standing


class Supervisor:
    """The workers of one command."""

    def __init__(self, run: Run, workers: int, metrics_port: int | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._workers = []
        for index in range(workers):
            arguments = ["ingest.worker", "--run", str(run.path), "--index", str(index), "--of", str(workers)]
            if metrics_port is not None:
                arguments += ["--metrics-port", str(metrics_port + index if metrics_port else 0)]
            process = Process(f"worker {index}", arguments, run.output(f"ingest-{index}"), hint="")
            self._workers.append(Revived(process))

    @property
    def restarts(self) -> int:
        return sum(worker.restarts for worker in self._workers)

    def start(self) -> None:
        for worker in self._workers:
            worker.process.start()

    def step(self) -> None:
        """Start again what died.  Raises ProcessDied where that does not help."""
        for worker in self._workers:
            worker.look(self._say)

    def stop(self) -> None:
        """Have every worker read the log to its end, and wait for them."""
        for worker in self._workers:
            worker.process.ask_to_stop()
        for worker in self._workers:
            worker.process.end()

    def kill(self) -> None:
        for worker in self._workers:
            worker.process.end(0.0)


def ingest(
    run: Run,
    workers: int,
    *,
    once: bool,
    metrics_port: int | None,
    say: Callable[[str], None],
    show: Callable[[Standing], None],
) -> tuple[Standing, int]:
    """Keep `workers` workers on a run until interrupted, or with `once` until the lake holds the whole log.

    Where the lake stands at the end, and how many workers were started again.  Raises ProcessDied,
    LogUnavailable, and RunBusy where the log is no Kafka and a `headrace run` is alive.
    """
    with closing(run.open_log(run.config())) as log:
        supervisor = Supervisor(run, workers, metrics_port, say)
        # without groups a live run's own worker owns all lanes, for ever
        with nullcontext() if has_groups(log) else only_one(run):
            return _ingest(run, log, supervisor, once=once, say=say, show=show)


def _ingest(
    run: Run,
    log: Log,
    supervisor: Supervisor,
    *,
    once: bool,
    say: Callable[[str], None],
    show: Callable[[Standing], None],
) -> tuple[Standing, int]:
    watch = Watch(log, Store(run.lake))
    try:
        supervisor.start()
        quiet = 0
        while quiet < 2:  # a derivation appends to the log once more
            time.sleep(LOOK_EVERY_S)
            supervisor.step()
            try:
                standing = watch.look()
            except (LogUnavailable, StoreUnavailable) as error:  # the workers wait for it, and so does this
                say(f"trying again: {error}")
                continue
            show(standing)
            quiet = quiet + 1 if once and not standing.lag() else 0
        supervisor.stop()
    except KeyboardInterrupt:
        say("stopping: the workers read the log to its end")
        supervisor.stop()
    finally:
        supervisor.kill()
    return watch.look(), supervisor.restarts
