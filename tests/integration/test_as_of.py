"""Time travel: each table as it stood, the sets too, also in a copy of the lake and after files are gone."""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import headrace
from ingest.rederive import derive_set
from ingest.tables import EventTables
from lake.as_of import AsOfError, moment, shown
from lake.config import Admission
from lake.log import open_log
from lake.models import EVENT_TABLES
from lake.optimize import optimize_table
from lake.query import QueryError, open_lake
from lake.stats import stats
from lake.store import Store
from tests.support.run_events import finished_group

GROUPS = 3
COUNT = "select count(*) as n from event_calls"


def now() -> datetime:
    """A moment with a millisecond on both sides in which nothing is committed."""
    time.sleep(0.005)
    found = datetime.now(UTC)
    time.sleep(0.005)
    return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[datetime]]:
    """A lake, and moments: before it, after each group's events, after its set was derived."""
    folder = tmp_path_factory.mktemp("lake")
    log, store, moments = open_log(f"sqlite://{folder / 'log.db'}"), Store(str(folder / "lake")), [now()]
    tables = EventTables(log, store)
    for number in range(GROUPS):
        log.append(finished_group(number))
        reader = log.reader(tables.positions())
        while records := reader.poll(0.0):
            tables.commit(records)
        reader.close()
        moments.append(now())
    groups = [f"g-{n:06d}" for n in range(GROUPS)]
    derive_set(store, Admission(), "default", groups, lambda _sentence: None)
    moments.append(now())
    log.close()
    return folder / "lake", moments


def test_every_table_is_as_it_stood(lake: tuple[Path, list[datetime]]) -> None:
    root, moments = lake
    each = open_lake(root).rows(COUNT)[0]["n"] // GROUPS
    assert each > 0
    for done, moment_then in enumerate(moments[:-1]):
        then = open_lake(root, as_of=moment_then)
        assert then.rows(COUNT) == [{"n": done * each}]
        assert then.rows("select count(distinct group_id) as n from event_scores") == [{"n": done}]
        assert then.rows("select count(*) as n from weights") == [{"n": 0}], "the set was not there yet"
        assert then.rows("select count(distinct group_id) as n from executions") == [{"n": done}]
        assert not any(t.num_rows for t in then.audit().values())
    last, today = open_lake(root, as_of=moments[-1]), open_lake(root)
    for name in ("weights", "event_calls", "dead_letters", "progress"):
        assert last.arrow(name) == today.arrow(name)
    assert last.rows("select count(*) as n from weights")[0]["n"] > 0


def test_a_copy_of_the_lake_tells_the_same(lake: tuple[Path, list[datetime]], tmp_path: Path) -> None:
    root, moments = lake
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)  # every file is of now
    for moment_then in moments:
        there = open_lake(tmp_path / "copy", as_of=moment_then)
        assert there.rows(COUNT) == open_lake(root, as_of=moment_then).rows(COUNT)


def test_a_version_names_the_moment_of_its_commit(lake: tuple[Path, list[datetime]]) -> None:
    root, _ = lake
    newest = DeltaTable(str(root / "events/scores")).version()
    counts = [
        open_lake(root, as_of=f"events/scores@{v}").rows(
            "select count(distinct group_id) n from event_scores"
        )
        for v in range(newest + 1)
    ]
    assert counts[0] == [{"n": 0}]
    assert counts[-1] == [{"n": GROUPS}]
    with pytest.raises(AsOfError, match=rf"events/scores@{newest + 1}: .*0 to {newest}"):
        open_lake(root, as_of=f"events/scores@{newest + 1}")
    with pytest.raises(AsOfError, match="there: none"):
        open_lake(root, as_of="events/nothing@1")


def test_times_are_read_as_they_are_written(lake: tuple[Path, list[datetime]]) -> None:
    store, now_ms = Store(str(lake[0])), 1_800_000_000_000
    for text, ago_s in {
        "90s": 90,
        "15m": 900,
        "2h": 7200,
        "1.5h": 5400,
        "3d": 259_200,
        "1w": 604_800,
    }.items():
        assert moment(text, store, now_ms) == now_ms - 1000 * ago_s
    at = datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)
    expected = round(at.timestamp() * 1000)
    for text in (
        "2026-03-01T12:30:00.250Z",
        "2026-03-01 13:30:00.250+01:00",
        at.astimezone().replace(tzinfo=None).isoformat(),  # no zone: local
    ):
        assert moment(text, store, now_ms) == expected
    assert moment(at, store, now_ms) == expected
    assert shown(expected) == "2026-03-01T12:30:00.250+00:00"
    for wrong in ("yesterday", "15", "15 minutes", "", "2026-13-01", "-2h"):
        with pytest.raises(AsOfError, match="write 15m"):
            moment(wrong, store, now_ms)
    with pytest.raises(AsOfError, match="in the future"):
        moment(datetime.now(UTC) + timedelta(days=1), store)


def test_what_is_gone_is_told_and_the_rest_is_shown(
    lake: tuple[Path, list[datetime]], tmp_path: Path
) -> None:
    root, moments = lake
    shutil.copytree(root, tmp_path / "lake")
    first = DeltaTable(str(tmp_path / "lake/events/calls"), version=1).file_uris()
    Path(first[0].removeprefix("file://")).unlink()  # as a vacuum after compaction takes it
    DeltaTable(str(tmp_path / "lake/events/scores")).create_checkpoint()
    for version in range(2):  # as Delta cleans up old commits after a checkpoint
        (tmp_path / f"lake/events/scores/_delta_log/{version:020d}.json").unlink()
    then = open_lake(tmp_path / "lake", as_of=moments[1])
    with pytest.raises(QueryError, match=r"events/calls as of .* 1 of its \d+ files were vacuumed"):
        then.rows(COUNT)
    with pytest.raises(QueryError, match=r"events/calls as of .*vacuumed"):
        then.rows("from calls")  # a model that reads it
    with pytest.raises(QueryError, match=r"events/scores as of .*cleaned up.*version 2, is of 20"):
        then.rows("from event_scores")
    with pytest.raises(QueryError, match="vacuumed"):
        then.audit()
    assert open_lake(tmp_path / "lake", as_of=moments[-1]).rows("select count(*) n from event_scores")[0]["n"]
    assert then.rows("select count(*) > 0 as there from event_executions") == [{"there": True}]


def test_it_reaches_back_over_an_optimize_until_that_deletes_the_files(
    lake: tuple[Path, list[datetime]], tmp_path: Path
) -> None:
    root, moments = lake
    shutil.copytree(root, tmp_path / "lake")
    before = [open_lake(root, as_of=m).rows(COUNT) for m in moments]
    store = Store(str(tmp_path / "lake"))
    done = optimize_table(store, "events/calls")
    assert (done.files_before, done.files_after, done.vacuumed) == (GROUPS, 1, 0)
    assert [open_lake(tmp_path / "lake", as_of=m).rows(COUNT) for m in moments] == before
    optimized = now()
    assert optimize_table(store, "events/calls", retain_h=0).vacuumed == GROUPS
    for moment_then in moments[1:]:
        with pytest.raises(QueryError, match="vacuumed since, their rows lie in newer ones"):
            open_lake(tmp_path / "lake", as_of=moment_then).rows(COUNT)
    assert open_lake(tmp_path / "lake", as_of=moments[0]).rows(COUNT) == before[0], "nothing was there yet"
    assert open_lake(tmp_path / "lake", as_of=optimized).rows(COUNT) == before[-1]
    found = stats(str(tmp_path / "lake")).calls
    assert found is not None
    assert found.exact
    assert found.calls == before[-1][0]["n"]


def test_a_column_that_was_added_later_is_null_then(tmp_path: Path) -> None:
    """A lake of the previous version has every declared column, as of any moment."""
    with tarfile.open(Path(__file__).parents[1] / "golden/recorded/v1.tar.xz") as recorded:
        recorded.extractall(tmp_path, filter="data")
    for as_of in (None, "events/calls@2"):
        lake = open_lake(tmp_path, as_of=as_of)
        for name, schema in EVENT_TABLES.items():
            table = lake.arrow(name)
            assert set(table.column_names) == set(schema.names), name
            assert table.select(schema.names).cast(schema).num_rows == table.num_rows
        assert lake.arrow("event_calls")["schema"].null_count == lake.arrow("event_calls").num_rows > 0


def test_the_command_takes_it(lake: tuple[Path, list[datetime]]) -> None:
    root, moments = lake
    command = ["sql", str(root), COUNT, "--json", "--as-of"]
    said = CliRunner().invoke(headrace.cli, [*command, moments[1].isoformat()])
    assert json.loads(said.output) == open_lake(root, as_of=moments[1]).rows(COUNT)
    assert headrace.open(root, as_of=moments[0]).rows(COUNT) == [{"n": 0}]
    refused = CliRunner().invoke(headrace.cli, [*command, "soon"])
    assert isinstance(refused.exception, AsOfError)
