"""The ingest worker on a real S3 server: exactly once with two writers, kills, and a store that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from ingest.rederive import derive_set, fresh_lake
from ingest.worker import Worker
from lake.blobs import BlobMissing, Blobs
from lake.config import Config
from lake.digest import table_digest
from lake.events import Event
from lake.layout import Run
from lake.log import Log, LogUnavailable
from lake.query import Lake, open_lake
from lake.stats import stats
from lake.store import Fenced, Store, StoreError, StoreUnavailable
from tests.support import s3
from tests.support.run_events import finished_group, ids

TOPICS = ("calls", "executions", "scores", "groups")
SCHEMA = pa.schema([("group_id", pa.string()), ("n", pa.int64())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    with s3.bucket(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def run(server: s3.S3Server, tmp_path: Path) -> Run:
    """A run whose lake lies on S3, its log on this machine, of two lanes."""
    assert server
    run = Run(tmp_path / "run")
    run.path.mkdir()
    config = Config(commit_every_s=0.05, partitions=2, lake=f"s3://headrace/{tmp_path.name}")
    run.config_file.write_bytes(msgspec.json.encode(config))
    return run


@pytest.fixture
def log(run: Run) -> Iterator[Log]:
    log = run.open_log()
    yield log
    log.close()


def append(log: Log, groups: range) -> list[Event]:
    found = [event for number in groups for event in finished_group(number)]
    log.append(found)
    return found


def digest(lake: Lake, name: str) -> str:
    """Of a table's rows; of an event table in the order of the log, however its commits came."""
    rows = lake.arrow(name)
    if name.startswith("event_"):
        rows = rows.sort_by([("log_partition", "ascending"), ("log_offset", "ascending")])
    return table_digest(rows)


def check(run: Run, log: Log, expected: list[Event]) -> None:
    """Every event once, and every table as a local lake from the same log has it."""
    with_ready = {t: table for t in TOPICS if (table := Store(run.lake).existing(f"events/{t}")) is not None}
    for topic, table in with_ready.items():
        found = [
            e for e in table.read(columns=["event_id"])["event_id"].to_pylist() if not e.endswith(":ready")
        ]
        assert sorted(found) == sorted(ids([e for e in expected if topic == e.TOPIC])), topic
    assert set(with_ready) == set(TOPICS)
    groups = sorted({e.group_id for e in expected if hasattr(e, "group_id")})
    local = fresh_lake(log, run.path / "again", lambda _sentence: None)
    derive_set(local, run.config().admission, "default", groups, lambda _sentence: None)
    there, here = open_lake(run.path), open_lake(run.path / "again")
    for name in ("event_calls", "event_executions", "event_scores", "weights", "segments", "trees"):
        assert digest(there, name) == digest(here, name), name
    assert not any(t.num_rows for t in there.audit().values())


def readable(read: Callable[[], object]) -> object:
    """What `read` gives; None while the store does not answer."""
    try:
        return read()
    except StoreError:
        return None


class Process:
    """A worker's process and what it printed."""

    def __init__(self, run: Run, *arguments: str, kill_at: str = "") -> None:
        environment = dict(os.environ) | ({"HEADRACE_KILL_AT": kill_at} if kill_at else {})
        self._log = run.path / f"worker-{time.time_ns()}.log"
        with self._log.open("wb") as sink:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "ingest.worker", "--run", str(run.path), *arguments],
                env=environment, stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.output[-3000:]
            assert self.popen.poll() is None, self.output[-3000:]
            time.sleep(0.05)

    def finish(self) -> None:
        """Have it read the log to its end; it listens to signals once it has said where it begins."""
        self.until(lambda: "INFO lanes [" in self.output)
        self.popen.send_signal(signal.SIGTERM)
        assert self.popen.wait(60) == 0, self.output[-3000:]


# ----------------------------------------------------------------------------------- two writers
def test_a_second_worker_of_the_same_lanes_is_refused(run: Run, log: Log) -> None:
    config = run.config()
    worker, zombie = Worker(log, Store(run.lake), config), Worker(log, Store(run.lake), config)
    expected = append(log, range(3))
    worker.close()
    with pytest.raises(Fenced):
        zombie.close()
    zombie.leave()
    check(run, log, expected)


def test_of_two_commits_of_one_offset_exactly_one_stands(run: Run) -> None:
    """The store itself decides, at the very same moment: a conditional put of the commit's name."""
    handles = [Store(run.lake).table("events/race", SCHEMA) for _ in range(2)]
    both, outcomes = threading.Barrier(2), []

    def race(handle: object, who: int, stands_at: int | None, to: int) -> None:
        both.wait(30)
        try:
            handle.append(  # type: ignore[attr-defined]
                pa.table({"group_id": ["g"], "n": [who]}, SCHEMA),
                {"log/race/0": to},
                {"log/race/0": stands_at},
            )
            outcomes.append(who)
        except Fenced:
            outcomes.append(None)

    winners = []
    for number in range(5):
        outcomes.clear()
        threads = [
            threading.Thread(target=race, args=(h, who, number or None, number + 1))
            for who, h in enumerate(handles)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(outcomes) == 2
        (winner,) = [o for o in outcomes if o is not None]
        winners.append(winner)
        for handle in handles:
            handle.refresh()
    assert Store(run.lake).existing("events/race").read()["n"].to_pylist() == winners


@pytest.mark.slow
def test_two_workers_of_different_lanes_both_get_in(run: Run, log: Log) -> None:
    workers = [Process(run, "--index", str(i), "--of", "2") for i in range(2)]
    expected: list[Event] = []
    for number in range(8):
        expected += append(log, range(number, number + 1))
        time.sleep(0.1)
    for worker in workers:
        worker.finish()
    check(run, log, expected)
    lanes = open_lake(run.path).rows("select distinct log_partition as p from event_calls order by p")
    assert lanes == [{"p": 0}, {"p": 1}]


# ------------------------------------------------------------------------------------ killed
@pytest.mark.slow
@pytest.mark.parametrize("point", ["store.after-write:2", "store.before-commit:3", "store.after-commit:3"])
def test_a_worker_killed_between_file_and_commit_loses_nothing(run: Run, log: Log, point: str) -> None:
    expected = append(log, range(2))
    assert Process(run, kill_at=point).popen.wait(60) == -signal.SIGKILL
    expected += append(log, range(2, 4))
    Process(run).finish()
    check(run, log, expected)


# --------------------------------------------------------------------------- the store goes away
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_worker_goes_on_when_the_store_is_back(run: Run, log: Log, server: s3.S3Server, how: str) -> None:
    expected = append(log, range(2))
    worker = Process(run)
    try:
        worker.until(lambda: (t := Store(run.lake).existing("events/scores")) and t.read().num_rows)
        if how == "killed":
            server.kill()
        else:
            server.pause()
        expected += append(log, range(2, 5))
        worker.until(lambda: "trying again in" in worker.output)
        assert "does not answer" in worker.output
    finally:
        if how == "killed":
            server.start()
        else:
            server.resume()
    expected += append(log, range(5, 6))
    scores = sum(e.TOPIC == "scores" for e in expected)
    worker.until(
        lambda: readable(lambda: Store(run.lake).existing("events/scores").read().num_rows) == scores
    )
    worker.finish()
    check(run, log, expected)


@pytest.mark.slow
def test_an_append_to_a_store_that_is_away_says_so_and_may_be_made_again(
    run: Run, server: s3.S3Server
) -> None:
    store = Store(run.lake)
    table = store.table("events/away", SCHEMA)
    rows = pa.table({"group_id": ["g"], "n": [1]}, SCHEMA)
    table.append(rows, {"log/away/0": 1})
    server.kill()
    try:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            table.append(rows, {"log/away/0": 2}, {"log/away/0": 1})
        with pytest.raises(StoreUnavailable):
            store.existing("events/away")
    finally:
        server.start()
    deadline = time.monotonic() + 60  # it answers before it has opened all of its volumes
    while True:
        try:
            assert table.append(rows, {"log/away/0": 2}, {"log/away/0": 1}) == 2
            break
        except StoreUnavailable:
            assert time.monotonic() < deadline
    assert store.existing("events/away").read()["n"].to_pylist() == [1, 1]


# --------------------------------------------------------------------------------------- the rest
def test_sizes_and_time_travel_work_there(run: Run, log: Log) -> None:
    append(log, range(2))
    Worker(log, Store(run.lake), run.config()).close()
    time.sleep(0.01)
    between = time.time()
    time.sleep(0.01)
    append(log, range(2, 4))
    Worker(log, Store(run.lake), run.config()).close()
    found = stats(run.lake)
    assert found.calls is not None
    counted = "select count(*) n, sum(n_context + n_output) tokens, sum(n_output) sampled from event_calls"
    (now,) = open_lake(run.path).rows(counted)
    assert (found.calls.calls, found.calls.unique_tokens, found.calls.sampled_tokens) == tuple(now.values())
    assert found.calls.exact
    ago = f"{time.time() - between:.3f}s"
    assert open_lake(run.path, as_of=ago).rows(counted)[0]["n"] == now["n"] // 2


@pytest.mark.slow
def test_blobs_lie_there_once_and_a_store_that_is_away_is_told(server: s3.S3Server) -> None:
    blobs, other = Blobs("s3://headrace/blobs"), Blobs("s3://headrace/blobs")
    data = os.urandom(3 << 20)
    name = blobs.put(data)
    assert other.put(data) == name
    assert other.get(name, len(data)) == data
    with pytest.raises(BlobMissing):
        blobs.get("0" * 64, 1)
    server.kill()
    try:
        with pytest.raises(LogUnavailable, match="try again"):
            blobs.get(name, len(data))
        with pytest.raises(LogUnavailable, match="try again"):
            blobs.put(os.urandom(10))
    finally:
        server.start()
    assert blobs.get(name, len(data)) == data
