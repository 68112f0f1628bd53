"""A log filled again from a lake: what is made from it is the lake, and a worker goes on with it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ingest.executors import Inline, Work
from ingest.rebuild import Rebuilt, rebuild
from ingest.restore import CannotRestore, ends_in, opened, partitions_in, restore
from lake.config import override
from lake.events import TOPICS
from lake.layout import Run
from lake.log import Log, Partition, Record, open_log
from lake.query import open_lake
from lake.restoring import Misplaced
from lake.store import Store
from lake.wire import GAP, RECORD_BYTES_MAX
from tests.support.command import document
from tests.support.events import tool
from tests.support.ingested import GROUPS, ingested_run, work
from tests.support.run_events import finished_group


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ingested_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def lost(request: pytest.FixtureRequest, made: Run, tmp_path: Path) -> Run:
    """The same run with its log gone; a new one is empty, on SQLite or on Kafka."""
    shutil.copytree(made.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    (run.path / "log.db").unlink()
    if request.param == "kafka":
        url = request.getfixturevalue("kafka_url")(partitions=3)
        run.config_file.write_bytes(msgspec.json.encode(override(run.config(), [f"log={url}"])))
    return run


def records_of(log: Log) -> dict[Partition, list[Record]]:
    ends = {(t, p): end for t in TOPICS for p, end in log.end_offsets(t).items()}
    found: dict[Partition, list[Record]] = {lane: [] for lane in ends}
    reader = log.reader(dict.fromkeys(ends, 0))
    while any(reader.positions()[lane] < end for lane, end in ends.items()):
        for record in reader.poll(30.0):
            found[record.topic, record.partition].append(record)
    reader.close()
    return found


def remade(run: Run) -> Rebuilt:
    return rebuild(run, Work(Inline()), into=f"{run.path}-again")


def test_what_is_made_from_a_restored_log_is_the_lake_it_came_from(made: Run, lost: Run) -> None:
    with closing(lost.open_log()) as log:
        seen: list[tuple[int, int]] = []
        done = restore(Store(lost.lake), log, lambda n, of: seen.append((n, of)))
        assert seen[-1] == (done.records, done.records)
        new = records_of(log)
    with closing(made.open_log()) as log:
        old = records_of(log)
    assert sum(map(len, old.values())) == done.records == done.written
    assert done.dead_letters == GROUPS
    assert done.gaps > GROUPS
    for lane, records in old.items():
        assert len(new[lane]) == len(records)
        for before, after in zip(records, new[lane], strict=True):
            if after.headers.type != GAP:
                assert after == before
    assert max(len(r.value) for lane in new.values() for r in lane) <= RECORD_BYTES_MAX
    again = remade(lost)
    assert (again.differing, again.announced_differing) == ([], [])
    assert {t.table: t.rows for t in again.tables} == {t.table: t.rows_again for t in again.tables}


def test_the_worker_goes_on_with_the_offsets_of_its_lake(lost: Run) -> None:
    with closing(lost.open_log()) as log:
        restore(Store(lost.lake), log)
        before = ends_in(Store(lost.lake))
        log.append(finished_group(GROUPS + 2))
    work(lost)
    lake = open_lake(lost.path)
    assert lake.rows("select count(*) as n from weights where group_id = 'g-000007'") == [{"n": 4}]
    assert lake.rows("select count(*) as n from dead_letters") == [{"n": GROUPS}]
    assert {name: t.num_rows for name, t in lake.audit().items() if t.num_rows} == {}
    after = ends_in(Store(lost.lake))
    assert all(after[lane] >= end for lane, end in before.items())
    assert remade(lost).differing == []


def test_a_restore_that_was_broken_off_goes_on(lost: Run) -> None:
    class Stopped(Exception):
        pass

    def stop(done: int, of: int) -> None:
        if done > of // 2:
            raise Stopped

    with closing(lost.open_log()) as log:
        with pytest.raises(Stopped):
            restore(Store(lost.lake), log, stop)
        done = restore(Store(lost.lake), log)
        assert 0 < done.written < done.records
        assert restore(Store(lost.lake), log).written == 0
    assert remade(lost).differing == []


def test_a_log_that_holds_something_else_is_refused(lost: Run) -> None:
    with closing(lost.open_log()) as log:
        log.append([tool("g-000000", 99)])
        with pytest.raises(Misplaced, match="another record at 0 of tools/"):
            restore(Store(lost.lake), log)


def test_the_number_of_partitions_comes_from_the_lake_and_another_is_refused(
    made: Run, tmp_path: Path
) -> None:
    store = Store(made.lake)
    assert partitions_in(store) == 3
    refusal = pytest.raises(CannotRestore, match=r"log of 3 partitions, this one has 2; .*\?partitions=3")
    refusal = pytest.raises(CannotRestore, match=r"log of 3 partitions, this one has 2; .*\?partitions=3")
    with closing(open_log(f"sqlite://{tmp_path}/two.db?partitions=2")) as log, refusal:
        restore(store, log)
    with closing(opened(made.lake, store, f"sqlite://{tmp_path}/new.db", str(tmp_path / "blobs"))) as log:
        assert log.partitions("calls") == 3
        assert restore(store, log).written > 0
    assert list((tmp_path / "blobs").iterdir())
    with pytest.raises(CannotRestore, match="say by --into"):
        opened(made.lake, store, None, None)
    with (
        closing(open_log(f"sqlite://{tmp_path}/x.db")) as log,
        pytest.raises(CannotRestore, match="no events"),
    ):
        restore(Store(str(tmp_path / "nothing")), log)


@pytest.mark.slow
def test_the_command_fills_the_log_of_a_run(made: Run, tmp_path: Path) -> None:
    shutil.copytree(made.path, tmp_path / "run")
    (tmp_path / "run" / "log.db").unlink()
    shutil.rmtree(tmp_path / "run" / "blobs")
    done = document("log", "restore", "run", folder=tmp_path)
    assert done["written"] == done["records"]
    assert done["dead_letters"] == GROUPS
    assert document("lake", "rebuild", "run", "--check", folder=tmp_path)["differing"] == []
    into = f"sqlite://{tmp_path}/other.db"
    other = document("log", "restore", "run/lake", "--into", into, "--blobs", "b", folder=tmp_path)
    assert other["records"] == done["records"]
    assert document("log", "restore", "run", folder=tmp_path)["written"] == 0
