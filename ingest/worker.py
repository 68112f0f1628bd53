"""The ingest worker: log -> event tables -> derived tables -> group.ready.

    python -m ingest.worker --run RUN

Stop it or kill it at any point and start it again: it goes on where the lake stands.  SIGTERM lets
it read the log to its end first.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from ingest.materialise import Materialiser, params_of
from ingest.tables import EventTables
from lake.config import Config
from lake.events import Event
from lake.layout import Run
from lake.log import Log, Reader, Record, now_us, open_log
from lake.models import Models
from lake.store import Store

POLL_S = 0.1
BATCH_BYTES_MAX = 32 << 20


class Worker:
    """One worker over all partitions: `step` reads, commits and derives once."""

    def __init__(
        self, log: Log, store: Store, config: Config, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._clock, self._every_s = log, clock, config.commit_every_s
        self._tables = EventTables(log, store)
        self._materialiser = Materialiser(
            store, Models.load(), params_of(config.admission), log.partitions("scores")
        )
        self._reader: Reader = log.reader(self._tables.positions())
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._since: float | None = None
        self._announce(self._materialiser.complete())

    def _announce(self, groups: Sequence[str]) -> None:
        if groups:
            ready = self._materialiser.derive(groups, self._tables.positions())
            events: list[Event] = [msgspec.structs.replace(e, time_us=now_us()) for e in ready]
            self._log.append(events)

    def step(self, wait_s: float = POLL_S, *, flush: bool = False) -> bool:
        """Read for at most `wait_s`; commit when a batch is due (or `flush`); whether it read anything."""
        records = self._reader.poll(wait_s)
        if records and self._since is None:
            self._since = self._clock()
        self._pending += records
        self._pending_bytes += sum(len(r.value) for r in records)
        due = self._since is not None and self._clock() - self._since >= self._every_s
        if self._pending and (due or flush or self._pending_bytes > BATCH_BYTES_MAX):
            new = self._tables.commit(self._pending)
            self._pending, self._pending_bytes, self._since = [], 0, None
            self._materialiser.add(new)
            if any(new[t].num_rows for t in ("calls", "executions", "scores") if t in new):
                self._announce(self._materialiser.complete())
        return bool(records)

    def close(self) -> None:
        """Read the log to its end, commit, and let go."""
        while self.step(flush=True):
            pass
        self.step(flush=True)
        self._reader.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ingest.worker", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    run = Run(parser.parse_args().run)
    config = run.config()
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the run stops us
    log = open_log(run.log_url(config))
    worker = Worker(log, Store(run.lake), config)
    while not stopping:
        worker.step()
    worker.close()
    log.close()


if __name__ == "__main__":
    main()
