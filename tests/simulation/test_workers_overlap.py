"""Workers that believe to own the same lanes, for a while, in any order: each event is once all the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from ingest.rederive import derive_set, fresh_lake
from ingest.worker import Worker
from lake.config import Admission, Config
from lake.log import Partition, open_log
from lake.query import open_lake
from lake.store import Store, StoreUnavailable
from tests.support.lake_digests import digests
from tests.support.run_events import finished_group

PARTITIONS, GROUPS = 3, 8


class Beliefs:
    """Lanes as a consumer group tells them: a test says what each worker believes, and when it hears."""

    shared = True

    def __init__(self, lanes: set[int]) -> None:
        self.believed, self.generation = frozenset(lanes), 0

    def hear(self, lanes: set[int]) -> None:
        self.believed, self.generation = frozenset(lanes), self.generation + 1

    def owned(self) -> frozenset[int]:
        return self.believed

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(3))
def test_whoever_believes_what_the_lake_is_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    log = open_log(f"sqlite://{tmp_path / 'log.db'}?partitions={PARTITIONS}")
    root = str(tmp_path / "lake")
    beliefs = [Beliefs(set(range(PARTITIONS))) for _ in range(3)]  # at first each believes to have all
    config = Config(commit_every_s=0.001)
    workers = [Worker(log, Store(root), config, b) for b in beliefs]
    events = [e for number in range(GROUPS) for e in finished_group(number, size=2, calls=2)]
    left = list(events)
    while left:
        for _ in range(rng.randrange(1, 5)):
            log.append(left[: (n := rng.randrange(1, 12))])
            del left[:n]
        if rng.random() < 0.3:
            rng.choice(beliefs).hear({lane for lane in range(PARTITIONS) if rng.random() < 0.6})
        for _ in range(rng.randrange(1, 4)):
            rng.choice(workers).step(0.0, flush=rng.random() < 0.5)
    for at, one in enumerate(beliefs):
        one.hear({at})
    for _ in range(3):
        for worker in workers:
            while worker.step(0.0, flush=True):
                pass
    for worker in workers:
        worker.close()

    lake = open_lake(root)
    for topic in ("calls", "executions", "scores"):
        found = [r["event_id"] for r in lake.rows(f"select event_id from event_{topic}")]
        assert sorted(found) == sorted(e.event_id for e in events if topic == e.TOPIC)
    names = [f"g-{number:06d}" for number in range(GROUPS)]
    assert [r["group_id"] for r in lake.rows("from groups where state = 'READY' order by group_id")] == names
    assert {name: t.to_pylist() for name, t in lake.audit().items() if t.num_rows} == {}
    fresh = fresh_lake(log, tmp_path / "again", lambda _sentence: None)
    derive_set(fresh, Admission(), "default", names, lambda _sentence: None)
    assert digests(Store(root)) == digests(fresh)
    log.close()


def test_a_store_that_is_away_while_lanes_move_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, store = open_log(f"sqlite://{tmp_path / 'log.db'}"), Store(str(tmp_path / "lake"))
    log.append(finished_group(0))
    now, belief = 0.0, Beliefs(set())
    worker = Worker(log, store, Config(commit_every_s=0.001), belief, clock=lambda: now)
    table, times = Store.table, 0

    def away(*arguments: object) -> object:
        nonlocal times
        times += 1
        if times <= 3:
            raise StoreUnavailable("away")
        return table(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "table", away)
    belief.hear({0})
    for _ in range(20):
        worker.step(0.0, flush=True)
        now += 20.0
    assert worker.lag()["calls", 0] == 0
    assert open_lake(tmp_path / "lake").rows("select state from groups") == [{"state": "READY"}]
    worker.leave()
    log.close()
