"""A lake made again from its log alone equals the first, by one process or by four."""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ingest import rebuild as rebuilding
from ingest.comparing import compare_events, compare_set
from ingest.executors import Inline, Processes, ShardFailed, Work
from ingest.rebuild import CannotRebuild, Rebuilt, check_comparable, discard, pending_in, rebuild, replace
from ingest.restore import app_id
from ingest.shards import groups_in
from lake.digest import OrderedDigest
from lake.events import TOPICS
from lake.holding import RunBusy, only_one
from lake.layout import Run
from lake.models import Params
from lake.query import open_lake, read_params
from lake.store import Store
from tests.support.command import document, headrace
from tests.support.ingested import GROUPS, ingested_run, work
from tests.support.run_events import finished_group

RECORDED = Path(__file__).parents[1] / "golden" / "recorded" / "v1.tar.xz"
WEIGHTS = pa.schema([("group_id", pa.string())])
SET_TABLES = ("derivations", "nodes", "admitted", "segments", "trees", "weights")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ingested_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    """A run of this test's own."""
    shutil.copytree(made.path, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture(scope="module")
def again(made: Run, tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    """That lake made again, in one process."""
    return rebuild(made, Work(Inline()), into=str(tmp_path_factory.mktemp("again") / "lake"))


def compared(run: Run, again: Rebuilt) -> dict[str, list[str]]:
    """The tables of a run that differ from those made again, and where."""
    lake, other, work_ = Store(run.lake), Store(again.path), Work(Inline())
    tables = compare_events(lake, other, work_)
    for name in ("default", "j_max=1"):
        groups = sorted(groups_in(other.table(f"sets/{name}/weights", WEIGHTS)))
        params = read_params(lake.root, name, Params())
        tables += compare_set(lake, other, params, work_, groups=groups, pending=pending_in(other))
    return {t.table: t.differing for t in tables if not t.equal}


def digests(done: Rebuilt) -> dict[str, tuple[int, list[str]]]:
    return {t.table: (t.rows_again, t.differing) for t in done.tables}


def check(done: Rebuilt) -> None:
    assert done.differing == []
    assert done.announced_differing == []
    rows = digests(done)
    assert rows["events/dead_letters"][0] == GROUPS
    assert rows["sets/default/weights"][0] == 4 * GROUPS
    assert rows["sets/j_max=1/weights"][0] == 12
    assert {f"sets/default/{name}" for name in SET_TABLES} <= rows.keys()
    assert {t.table: t.rows for t in done.tables} == {t.table: t.rows_again for t in done.tables}


def test_a_lake_made_again_from_the_log_alone_equals_the_first(made: Run, again: Rebuilt) -> None:
    check(again)
    assert compared(made, again) == {}
    first, second = open_lake(made.path), open_lake(again.path)
    for name in ("staleness_identity", "progress", "executions", "weights"):
        assert first.arrow(name).to_pylist() == second.arrow(name).to_pylist(), name
    assert {name: t.num_rows for name, t in second.audit().items() if t.num_rows} == {}


@pytest.mark.slow
def test_four_processes_make_the_same_as_one(made: Run, again: Rebuilt, tmp_path: Path) -> None:
    executor = Processes(4)
    try:
        four = rebuild(made, Work(executor), into=str(tmp_path / "four"))
    finally:
        executor.close()
    check(four)
    assert digests(four) == digests(again)
    assert four.places > 1


def test_a_run_recorded_by_an_older_version_is_made_again(tmp_path: Path) -> None:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path / "run", filter="data")
    done = rebuild(Run(tmp_path / "run"), Work(Inline()))
    assert (done.differing, done.announced_differing) == ([], [])
    assert digests(done)["events/calls"][0] > 0
    discard(done)
    assert [p.name for p in (tmp_path / "run").iterdir() if "rebuild" in p.name] == []


def rewrite(run: Run, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """A table written anew with other rows, as a bug or a hand would."""
    table = Store(run.lake).existing(name)
    assert table is not None
    rows = change(table.read())
    ids = [app_id(t, p) for t in TOPICS for p in range(3)]
    offsets = {i: at for i in ids if (at := table.offset(i))}
    shutil.rmtree(Path(run.lake) / name)
    Store(run.lake).table(name, rows.schema).append(rows, offsets)


def with_value(column: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """The same rows with one value of a column changed."""

    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(column)
        field = rows.schema.field(at)
        return rows.set_column(at, field, pa.array([value, *rows[column].to_pylist()[1:]], field.type))

    return change


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("events/tools", "result", b"y"),
        ("events/calls", "output_logprobs", [-1.0, -1.0, -1.0, -1.0]),
        ("events/dead_letters", "reason", "because"),
        ("sets/default/weights", "advantage", 7.0),
        ("sets/j_max=1/trees", "token_ids", [1, 2]),
    ],
)
def test_one_value_that_differs_is_found_and_its_table_named(
    run: Run, again: Rebuilt, name: str, column: str, value: Any
) -> None:
    rewrite(run, name, with_value(column, value))
    ((table, differing),) = compared(run, again).items()
    assert (table, len(differing)) == (name, 1)


def test_a_group_too_many_or_too_few_is_found(run: Run, again: Rebuilt) -> None:
    def another(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("group_id")
        return pa.concat_tables([rows, rows.slice(0, 1).set_column(at, "group_id", pa.array(["g-999999"]))])

    rewrite(run, "sets/default/weights", another)
    rewrite(run, "sets/default/nodes", lambda rows: rows.filter(pc.not_equal(rows["group_id"], "g-000001")))
    assert compared(run, again) == {"sets/default/weights": ["g-999999"], "sets/default/nodes": ["g-000001"]}


def test_a_lake_that_is_lost_is_made_again_and_tables_that_are_lost_are_named(
    run: Run, tmp_path: Path
) -> None:
    shutil.rmtree(Path(run.lake) / "sets")
    groups = [f"g-{n:06d}" for n in range(GROUPS)]
    done = rebuild(run, Work(Inline()), into=str(tmp_path / "again"))
    found = {t.table: (t.rows, t.differing) for t in done.tables if not t.equal}
    assert found == {f"sets/default/{name}": (0, groups) for name in SET_TABLES[1:]}
    shutil.rmtree(run.lake)
    with pytest.raises(CannotRebuild, match="nothing to compare"):
        check_comparable(run)
    done = rebuild(run, Work(Inline()))
    assert (done.tables, done.announced_differing) == ([], [])
    assert done.rows > 0
    replace(run, done)
    work(run)
    assert open_lake(run.path).rows("select count(*) as n from weights") == [{"n": 4 * GROUPS}]


def test_what_came_into_the_log_since_is_made_and_not_compared(run: Run, tmp_path: Path) -> None:
    log = run.open_log()
    log.append(finished_group(GROUPS + 3))
    log.close()
    done = rebuild(run, Work(Inline()), into=str(tmp_path / "again"))
    check(done)
    scores = Store(done.path).existing("events/scores")
    assert scores is not None
    assert scores.read(["g-000008"]).num_rows == 4


def test_a_rebuild_that_was_broken_off_goes_on_and_another_folder_is_refused(
    run: Run, tmp_path: Path
) -> None:
    class Stops(Inline):
        """Ends in the middle of a stage, as Ctrl-C does."""

        def run(self, task: Any, shards: Any) -> Any:
            for number, outcome in enumerate(super().run(task, shards)):
                if number == 1:
                    raise KeyboardInterrupt
                yield outcome

    again = str(tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        rebuild(run, Work(Stops()), into=again)
    check(rebuild(run, Work(Inline()), into=again))
    check(rebuild(run, Work(Inline()), into=again))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(CannotRebuild, match="holds something else"):
        rebuild(run, Work(Inline()), into=str(tmp_path / "full"))
    with pytest.raises(CannotRebuild, match="is the run's own lake"):
        rebuild(run, Work(Inline()), into=run.lake)
    with pytest.raises(CannotRebuild, match="no set other"):
        rebuild(run, Work(Inline()), set_names=["other"])


def test_a_log_that_lost_records_is_refused(run: Run, tmp_path: Path) -> None:
    (run.path / "log.db").unlink()
    with pytest.raises(ShardFailed, match=r"another log, or it lost records: `headrace log restore`"):
        rebuild(run, Work(Inline()), into=str(tmp_path / "again"))


def test_a_rebuilt_lake_takes_the_place_of_the_first_and_the_worker_goes_on(run: Run) -> None:
    done = rebuild(run, Work(Inline()))
    with only_one(run), pytest.raises(RunBusy):
        replace(run, done)
    aside = replace(run, done)
    assert sorted(p.name for p in run.path.iterdir() if p.name.startswith("lake")) == [
        "lake",
        Path(aside).name,
    ]
    log = run.open_log()
    log.append(finished_group(GROUPS + 3))
    log.close()
    work(run)
    assert open_lake(run.path).rows("select count(*) as n from weights where group_id = 'g-000008'") == [
        {"n": 4}
    ]
    check_again = rebuild(run, Work(Inline()))
    assert check_again.differing == []


# ------------------------------------------------------------------------------------- executors
def _ends_once(shard: tuple[str, str]) -> int:
    """Dies at its first run."""
    folder, how = shard
    mark = Path(folder) / how
    if not mark.exists():
        mark.write_text("")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            raise RuntimeError("once")
    return os.getpid()


def _wrong(shard: str) -> int:
    raise ValueError(shard) if shard == "input" else RuntimeError(shard)


@pytest.mark.slow
def test_a_shard_that_failed_and_one_whose_process_died_are_run_again(tmp_path: Path) -> None:
    executor = Processes(2)
    try:
        work_ = Work(executor)
        shards = [(str(tmp_path), how) for how in ("raise", "no", "kill", "none")]
        assert len(work_.do("stage", _ends_once, shards)) == 4
        with pytest.raises(
            ShardFailed, match=r"stage: 1 of 1 shards failed 3 times \(shard: RuntimeError: shard\)"
        ):
            work_.do("stage", _wrong, ["shard"])
        with pytest.raises(ValueError, match="input"):
            work_.do("stage", _wrong, ["input"])
    finally:
        executor.close()


# --------------------------------------------------------------------------------------- digests
def test_an_ordered_digest_does_not_depend_on_how_rows_are_cut(made: Run) -> None:
    table = Store(made.lake).existing("events/calls")
    assert table is not None
    rows = table.read().sort_by([("log_partition", "ascending"), ("log_offset", "ascending")])
    wanted = OrderedDigest()
    wanted.add(rows)
    for size in (1, 7, 50):
        cut = OrderedDigest()
        for start in range(0, rows.num_rows, size):
            cut.add(rows.slice(start, size))
        assert (cut.rows, cut.hexdigest()) == (wanted.rows, wanted.hexdigest())
    more, other = OrderedDigest(), OrderedDigest()
    more.add(
        rows.append_column("later", pa.nulls(rows.num_rows, pa.int64())).select(
            [*rows.column_names[::-1], "later"]
        )
    )
    assert more.hexdigest() == wanted.hexdigest()
    other.add(rows.take(pc.sort_indices(rows, [("log_offset", "descending")])))
    assert other.hexdigest() != wanted.hexdigest()


# -------------------------------------------------------------------------------------- commands
@pytest.mark.slow
def test_the_command_checks_and_names_the_tables_that_differ(run: Run, tmp_path: Path) -> None:
    found = document("lake", "rebuild", str(run.path), "--check", folder=tmp_path)
    assert (found["differing"], found["rows"] > 0, Path(found["path"]).exists()) == ([], True, False)
    rewrite(run, "events/tools", with_value("result", b"y"))
    found = document("lake", "rebuild", str(run.path), "--check", "--workers", "2", folder=tmp_path, status=1)
    assert found["differing"] == ["events/tools"]
    found = document("lake", "rebuild", str(run.path), "--replace", folder=tmp_path)
    assert Path(found["replaced"]).is_dir()
    assert document("lake", "rebuild", str(run.path), "--check", folder=tmp_path)["differing"] == []
    said = headrace("lake", "rebuild", str(run.path), "--check", "--replace", folder=tmp_path, status=2)
    assert "leave one out" in said.stderr
    assert rebuilding.MARK not in [p.name for p in Path(run.lake).iterdir()]
