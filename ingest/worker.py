"""The ingest worker: log -> event tables -> derived tables -> group.ready.

    python -m ingest.worker --run RUN                      the only one, or a member of the group on Kafka
    python -m ingest.worker --run RUN --index 1 --of 2     one of several of one command

Stop it or kill it at any point and start it again: it goes on where the lake stands.  On Kafka workers
come and go: lanes move with the consumer group, and one that wakes up too late is refused by the lake.
SIGTERM lets it read the log to its end first.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from ingest.lanes import FixedLanes, GroupLanes, Lanes, Membership, has_groups
from ingest.materialise import HELD_BYTES_MAX, Materialiser, params_of
from ingest.tables import BATCH_BYTES, RECORD_BYTES, EventTables, read_to
from lake.config import Config
from lake.events import Event, GroupReady
from lake.layout import Run
from lake.log import Log, LogUnavailable, Partition, Reader, Record, now_us
from lake.metrics import serve, worker_metrics, write_targets
from lake.models import Models
from lake.store import Fenced, Store, StoreFull, StoreUnavailable

POLL_S = 0.05
LINGER_S = 0.02  # what is appended together comes together
READ_BYTES_MAX = 2 * BATCH_BYTES
"""Of records read and not committed: beyond it nothing is read until the lake takes some."""
LAG_EVERY_S = 2.0
RETRY_S_MIN, RETRY_S_MAX = 0.2, 10.0

logger = logging.getLogger("headrace.worker")


@dataclass
class _Pending:
    """What was read and is not committed yet."""

    records: list[Record] = field(default_factory=list)
    nbytes: int = 0
    since: float | None = None
    scored: Counter[str] = field(default_factory=Counter)  # group -> assessments among the records
    urgent: bool = False  # the last assessment of a group may be among them


class Worker:
    """One worker: `step` reads, commits and derives once, for the lanes that it owns then."""

    def __init__(
        self,
        log: Log,
        store: Store,
        config: Config,
        lanes: Lanes | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._log, self._store, self._config, self._clock = log, store, config, clock
        self._held_bytes_max = held_bytes_max
        self._models = Models.load()
        self._lanes = lanes or FixedLanes(0, 1, log.partitions("calls"))
        self._metrics = worker_metrics()
        self._parts: list[Reader | Materialiser] = []
        self._retry_s, self._retry_at = RETRY_S_MIN, 0.0
        self._lag_at = 0.0
        self._committed = -math.inf  # when the last commit began
        self._opened: tuple[frozenset[int], int] | None = None
        self._look_at_lanes()

    # ------------------------------------------------------------------------------------- lanes
    def _look_at_lanes(self) -> None:
        """Begin again where what is owned changed, or where the last beginning did not succeed."""
        found = (self._lanes.owned(), self._lanes.generation)
        if found != self._opened:
            self._opened = None
            self._open(found[0])
            self._opened = found

    def _open(self, owned: frozenset[int]) -> None:
        """Begin with these lanes where the lake stands; what was read and not committed is read again."""
        self._let_go()
        self._pending = _Pending()
        self._ready: list[GroupReady] = []  # derived, and not in the log yet
        self._tables = EventTables(self._log, self._store, owned)
        partitions = self._log.partitions("groups")
        self._materialiser = Materialiser(
            self._store, self._models, params_of(self._config.admission), partitions,
            lanes=owned, held_bytes_max=self._held_bytes_max,
        )  # fmt: skip
        self._parts.append(self._materialiser)
        positions = self._tables.positions()
        groups = {p: at for p, at in positions.items() if p[0] == "groups"}
        self._groups = self._log.reader(groups)
        self._parts.append(self._groups)
        self._reader = self._log.reader({p: at for p, at in positions.items() if p not in groups})
        self._parts.append(self._reader)
        self._metrics.lanes.set(len(owned))
        self._metrics.rebalances.inc()
        logger.info("lanes %s from %s", sorted(owned), positions)

    # ------------------------------------------------------------------------------------- a step
    def step(self, wait_s: float = POLL_S, *, flush: bool = False) -> bool:
        """Read for about `wait_s`; commit when a batch is due (or `flush`); whether it read anything.

        What hinders it for now (a full disk, a store or a log that does not answer) is logged, and
        tried again later.  Raises Fenced where another worker has taken lanes that are ours for ever.
        """
        try:
            if self._clock() < self._retry_at:
                self._lanes.owned()  # or they are given to others
                time.sleep(min(wait_s, self._retry_at - self._clock()))
                return False
            self._look_at_lanes()
            read = self._read(wait_s)
            if flush or self._due():
                self._commit()
            self._derive()
            self._retry_s = RETRY_S_MIN
        except Fenced as error:
            self._metrics.fenced.inc()
            if not self._lanes.shared:
                raise
            logger.warning("refused, another worker took over; looking at the lanes again: %s", error)
            self._opened = None
            return True
        except (StoreFull, StoreUnavailable, LogUnavailable) as error:
            self._metrics.store_error(error)
            logger.warning("trying again in %.1f s: %s", self._retry_s, error)
            self._retry_at = self._clock() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
            return True
        self._show_lag()
        return read

    def _read(self, wait_s: float) -> bool:
        if self._pending.nbytes >= READ_BYTES_MAX:
            return False
        room = READ_BYTES_MAX - self._pending.nbytes
        records = self._reader.poll(wait_s, bytes_max=min(room, BATCH_BYTES))
        records += self._groups.poll(0.0)
        self._take(records)
        return bool(records)

    def _take(self, records: Sequence[Record]) -> None:
        pending = self._pending
        if records and pending.since is None:
            pending.since = self._clock()
        pending.records += records
        pending.nbytes += sum(len(r.value) + RECORD_BYTES for r in records)
        for record in records:
            if record.headers.type == "execution.scored":
                pending.scored[record.key] += 1
                missing = self._materialiser.open.scores_missing(record.key)
                pending.urgent |= missing is not None and pending.scored[record.key] >= missing
        self._show_pending()

    def _show_pending(self) -> None:
        self._metrics.pending_bytes.set(self._pending.nbytes)
        self._metrics.pending_records.set(len(self._pending.records))

    def _due(self) -> bool:
        """A commit begins every `commit_every_s` where there is work.

        Earlier for a large batch, and for what may be the last score of a group: a trainer waits for it.
        """
        pending, now = self._pending, self._clock()
        if pending.since is None:
            return False
        every_s = 0.0 if pending.urgent else self._config.commit_every_s
        old = now - pending.since >= LINGER_S and now - self._committed >= every_s
        return old or pending.nbytes >= BATCH_BYTES

    def _commit(self) -> None:
        """Commit what was read.

        The groups are read to their end first: an event is appended after the dispatch of its group, so
        that the group of every event in this batch is then known.
        """
        if not self._pending.records:
            return
        ends: dict[Partition, int] = {}
        if any(r.topic != "groups" for r in self._pending.records):
            at = self._groups.positions()
            ends = {
                ("groups", p): end
                for p, end in self._log.end_offsets("groups").items()
                if ("groups", p) in at
            }
        for records in read_to(self._groups, ends, 2000):
            self._take(records)
        self._committed = self._clock()
        new = self._tables.commit(self._pending.records)
        self._pending = _Pending()
        self._show_pending()
        self._materialiser.add(new)
        self._metrics.batches.inc()
        self._lanes.mirror(self._tables.positions())

    def _derive(self) -> None:
        """Derive the groups that are complete now and announce them."""
        if not self._ready:
            self._ready = self._materialiser.derive(self._tables.positions())
        if not self._ready:
            return
        now = now_us()
        events: list[Event] = [msgspec.structs.replace(e, time_us=now) for e in self._ready]
        self._log.append(events)
        groups, self._ready = [e.group_id for e in self._ready], []
        for group in groups:
            last = self._materialiser.open.last_score_us(group)
            self._metrics.ready_seconds.observe(max(0, now_us() - last) / 1e6)
        self._metrics.groups_ready.inc(len(groups))
        self._materialiser.announced(groups)

    def _show_lag(self) -> None:
        now = self._clock()
        if now >= self._lag_at:
            self._lag_at = now + LAG_EVERY_S
            self._metrics.lags(self.lag())

    def lag(self) -> dict[Partition, int]:
        """Records of the log that the lake does not hold yet, for each partition owned."""
        positions = self._tables.positions()
        ends = {t: self._log.end_offsets(t) for t in {t for t, _ in positions}}
        return {(t, p): max(0, ends[t][p] - at) for (t, p), at in positions.items()}

    def close(self) -> None:
        """Read the log to its end, commit, and let go."""
        while self.step(flush=True) or self._pending.records or self._ready or self._clock() < self._retry_at:
            pass
        self.step(flush=True)
        self.leave()

    def leave(self) -> None:
        """Let go at once; what is not committed is read again by whoever comes next."""
        self._let_go()
        self._lanes.close()

    def _let_go(self) -> None:
        for part in self._parts:
            part.close()
        self._parts = []


def lanes_of(log: Log, index: int, of: int, session_s: float) -> Lanes:
    """The lanes of worker `index` of `of`: by consumer group where the log has such, else fixed."""
    if has_groups(log):
        members: Membership = log.members("ingest", None, session_s)  # type: ignore[attr-defined]
        return GroupLanes(members)
    return FixedLanes(index, of, log.partitions("calls"))


def prepare_process() -> None:
    """Rows and records hold no cycles: have the collector look for them rarely, and not at our modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ingest.worker", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--index", type=int, default=0, help="which worker this is (default: 0)")
    parser.add_argument("--of", type=int, default=1, help="how many there are (SQLite; default: 1)")
    parser.add_argument("--metrics-port", type=int, help="expose Prometheus metrics on this port (0: any)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run = Run(arguments.run)
    config = run.config()
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the run stops us
    if arguments.metrics_port is not None:
        port = serve(arguments.metrics_port)
        write_targets(run.path, f"worker-{arguments.index}", [f"127.0.0.1:{port}"])
    prepare_process()
    log = run.open_log(config)
    lanes = lanes_of(log, arguments.index, arguments.of, config.ingest.session_s)
    worker = Worker(log, Store(run.lake), config, lanes)
    while not stopping:
        worker.step()
    worker.close()
    log.close()


if __name__ == "__main__":
    main()
