"""Sets side by side: named by their rules, derived for what is new, the same rows as all at once, audited."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from ingest import sets
from ingest.derived import OUTPUTS, SetDiffers
from ingest.executors import Inline, Work
from ingest.rebuild import rebuild
from ingest.sets import SetBusy, SetError, listed, materialize, rules_of, set_name_of, with_settings
from lake import events as ev
from lake.config import Admission
from lake.digest import table_digest
from lake.layout import NotARun, Run
from lake.models import Params
from lake.query import open_lake
from lake.store import Store
from lake.tables import SCHEMAS, to_table
from tests.support import s3
from tests.support.command import document, headrace, start
from tests.support.ingested import GROUPS, ingested_run
from tests.support.recorder import MODELS, Recorder, connect
from tests.support.run_events import finished_group

INLINE = Work(Inline())
WAITS = "3 of 4 executions not launched; 1 of 4 executions not assessed"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ingested_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    """A run of this test's own."""
    shutil.copytree(made.path, tmp_path / "run")
    return Run(tmp_path / "run")


class Lake:
    """A lake of events alone, as an import makes it; `append` adds events."""

    def __init__(self, root: str) -> None:
        self.root, self._recorder = root, Recorder()
        self._written = dict.fromkeys(self._recorder.rows, 0)

    def append(self, events: list[ev.Event]) -> None:
        for event in events:
            self._recorder.add(event)
        for topic, rows in self._recorder.rows.items():
            table = Store(self.root).table(f"events/{topic}", SCHEMAS[topic])
            if new := rows[self._written[topic] :]:
                table.append(to_table(topic, new))
            self._written[topic] = len(rows)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def digests(root: str, name: str) -> dict[str, str]:
    """table -> digest of its rows in the order of the model's key."""
    found = {}
    for output in OUTPUTS:
        table = Store(root).existing(f"sets/{name}/{output}")
        assert table is not None
        order = [(column, "ascending") for column in MODELS.by_name[output].key]
        found[output] = table_digest(table.read().sort_by(order))
    return found


def derived_at_once(root: str, params: Params) -> dict[str, str]:
    """The same of one derivation of the whole lake."""
    events = {f"event_{t}": Store(root).table(f"events/{t}", SCHEMAS[t]).read() for t in SCHEMAS}
    with closing(connect(events)) as con:
        tables = MODELS.derive(con, OUTPUTS, params)
    return {name: table_digest(table) for name, table in tables.items()}


# ------------------------------------------------------------------------------------ rules, names
def test_a_set_is_named_by_what_differs_and_every_rule_can_be_set(run: Run) -> None:
    rules = rules_of(str(run.path))
    settings = ["j_max=0", "admission.seed=7", "advantage=standardised", "roles=main,sub-agent"]
    wanted = with_settings(rules, settings)
    assert wanted == Admission(j_max=0, seed=7, advantage="standardised", roles=("main", "sub-agent"))
    assert set_name_of(wanted, rules) == "j_max=0,seed=7,advantage=standardised,roles=main+sub-agent"
    assert set_name_of(rules, rules) == "default"
    for bad, sentence in (
        ("steps=3", "a set is made by j_max, seed, advantage, roles"),
        ("j_max=-1", "j_max is -1, 0"),
        ("j_max=many", "Expected `int`"),
        ("roles=main,writer", "roles is main, writer"),
        ("advantage=mean", "Invalid enum value"),
    ):
        with pytest.raises(SetError, match=sentence):
            with_settings(rules, [bad])
    with pytest.raises(SetError, match="it is a folder's name"):
        materialize(str(run.path), ["j_max=1"], "../elsewhere", INLINE)
    with pytest.raises(NotARun, match="neither a run nor a lake"):
        materialize(str(run.path / "nothing"), [], None, INLINE)


def test_sets_lie_side_by_side_and_keep_their_rules(run: Run) -> None:
    path = str(run.path)
    before = digests(run.lake, "default")
    done = materialize(path, ["j_max=2"], "wide", INLINE)
    assert (done.groups, done.new, done.held, done.incomplete) == (GROUPS, GROUPS, [], 1)
    assert done.waiting == [{"group_id": "g-000005", "waiting_for": WAITS}]
    assert done.sound
    named = materialize(path, ["j_max=2"], None, INLINE)
    assert (named.params.set_name, named.new) == ("j_max=2", GROUPS)
    assert digests(run.lake, "wide") == digests(run.lake, "j_max=2")
    assert digests(run.lake, "default") == before
    again = materialize(path, ["j_max=2"], "wide", INLINE)
    assert (again.groups, again.new) == (GROUPS, 0)
    with pytest.raises(SetDiffers, match="give the set another name"):
        materialize(path, ["j_max=3"], "wide", INLINE)
    shown = {row.set: row for row in listed(path)}
    assert set(shown) == {"default", "j_max=1", "j_max=2", "wide"}
    assert (shown["wide"].j_max, shown["wide"].groups, shown["wide"].paths) == (2, GROUPS, 4 * GROUPS)
    assert (shown["j_max=1"].groups, shown["wide"].targets) == (3, shown["default"].targets)
    assert all(row.bytes > 0 and row.held == 0 for row in shown.values())
    with closing(open_lake(run.path, "wide")) as opened:
        assert opened.params.j_max == 2
        assert opened.rows("select count(*) n from weights") == [{"n": 4 * GROUPS}]
    assert rebuild(run, INLINE).differing == []


def test_parameters_of_a_set_that_an_older_version_made(run: Run) -> None:
    file = Path(run.lake) / "sets" / "default" / "params.json"
    old = json.loads(file.read_text())
    del old["roles"]
    file.write_text(json.dumps(old))
    assert materialize(str(run.path), [], None, INLINE).new == 0


def test_the_set_of_a_worker_is_left_to_it(run: Run) -> None:
    with closing(run.open_log()) as log:
        log.append(finished_group(9))
    from tests.support.ingested import work

    assert materialize(str(run.path), [], None, INLINE).new == 0  # the lake does not have it yet
    shutil.rmtree(Path(run.lake) / "sets" / "default")
    for path in (str(run.path), run.lake):
        with pytest.raises(SetError, match="the run's ingest worker writes and announces"):
            materialize(path, [], None, INLINE)
    work(run)
    assert materialize(str(run.path), [], "mine", INLINE).new == GROUPS + 1


# ------------------------------------------------------------------------------------ incremental
def test_group_by_group_and_all_at_once_make_the_same_rows(lake: Lake) -> None:
    for number in range(6):
        lake.append(finished_group(number, size=3, calls=4))
        done = materialize(lake.root, [], None, INLINE)
        assert (done.params.set_name, done.groups, done.new) == ("default", number + 1, 1)
        assert done.sound
    once = materialize(lake.root, [], "once", INLINE)
    assert once.new == 6
    wanted = derived_at_once(lake.root, Params())
    assert digests(lake.root, "default") == wanted
    assert digests(lake.root, "once") == wanted


def test_a_score_that_came_after_a_group_was_derived_changes_nothing(lake: Lake) -> None:
    events = finished_group(0)
    lake.append(events)
    materialize(lake.root, [], None, INLINE)
    before = digests(lake.root, "default")
    scored = next(e for e in events if isinstance(e, ev.ExecutionScored))
    lake.append([msgspec.structs.replace(scored, value=None, assessment="missing", version=1)])
    done = materialize(lake.root, [], None, INLINE)
    assert (done.new, digests(lake.root, "default"), done.sound) == (0, before, True)
    assert materialize(lake.root, [], "later", INLINE).sound
    assert digests(lake.root, "later") != before  # what is derived now sees what is there now


def test_what_was_broken_off_goes_on_with_the_scores_that_it_began_with(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [event for number in range(4) for event in finished_group(number)]
    lake.append(events)
    wanted = derived_at_once(lake.root, Params())

    class Broken(RuntimeError):
        pass

    class Stops(Inline):
        """Ends after its first shard, in the middle of the next one's tables."""

        def run(self, task, shards):  # type: ignore[no-untyped-def]
            yield 0, task(shards[0])
            with monkeypatch.context() as patch:
                patch.setattr("ingest.derived.DerivedSet.append", broken)
                task(shards[1])

    def broken(self, derived, groups, lane_of=None):  # type: ignore[no-untyped-def]
        for name in OUTPUTS[:2]:
            kept = self._of(name, derived[name].schema)
            kept.append(derived[name], groups, lane_of)
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr("ingest.shards.GROUPS_AT_ONCE", 2)
        with pytest.raises(Broken):
            materialize(lake.root, [], None, Work(Stops()))
    scored = next(e for e in events if isinstance(e, ev.ExecutionScored))
    lake.append([msgspec.structs.replace(scored, value=0.9, version=1)])
    done = materialize(lake.root, [], None, INLINE)
    assert (done.new, done.sound) == (2, True)
    assert digests(lake.root, "default") == wanted


def test_two_commands_do_not_derive_one_set_at_once(lake: Lake) -> None:
    lake.append(finished_group(0))
    with sets._alone(Store(lake.root), "default"), pytest.raises(SetBusy, match="another command derives"):
        materialize(lake.root, [], None, INLINE)
    assert materialize(lake.root, [], None, INLINE).new == 1


def test_a_group_that_violates_an_audit_is_held_back_until_it_is_sound(lake: Lake) -> None:
    bad = finished_group(1)
    for at, event in enumerate(bad):
        if isinstance(event, ev.ModelCalled) and event.call_id == 2:
            bad[at] = msgspec.structs.replace(event, parent_call_id=0)
    lake.append([*finished_group(0), *bad])
    for _ in range(2):
        done = materialize(lake.root, [], None, INLINE)
        assert (done.held, done.sound) == (["g-000001"], False)
    table = Store(lake.root).existing("sets/default/violations")
    assert table is not None
    rows = pa.table(table.read()).to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows)  # the second call found it there
    (row,) = listed(lake.root)
    assert (row.groups, row.held) == (1, 1)


# --------------------------------------------------------------------------------------- commands
def test_the_command(lake: Lake, tmp_path: Path) -> None:
    lake.append([*finished_group(0), *finished_group(1), *finished_group(2)[:5]])
    shown = document("materialize", lake.root, "--set", "j_max=3", "--as", "wide", folder=tmp_path)
    assert (shown["set"], shown["groups"], shown["new"], shown["incomplete"]) == ("wide", 2, 2, 1)
    assert shown["params"]["j_max"] == 3
    assert set(shown["violations"].values()) == {0}
    (row,) = document("materialize", lake.root, "--list", folder=tmp_path)
    assert (row["set"], row["groups"], row["j_max"]) == ("wide", 2, 3)
    assert document("sql", lake.root, "select count(*) n from weights", "--set", "wide", folder=tmp_path) == [
        {"n": 8}
    ]
    said = headrace("materialize", lake.root, "--set", "j_max=4", "--as", "wide", folder=tmp_path, status=2)
    assert "give the set another name" in said.stderr
    weights = Store(lake.root).existing("sets/wide/weights")
    assert weights is not None
    weights.append(weights.read().slice(0, 1))
    shown = document("materialize", lake.root, "--set", "j_max=3", "--as", "wide", folder=tmp_path, status=1)
    assert shown["violations"]["derived_twice"] == 1
    assert shown["rows"]["derived_twice"][0]["execution_id"] == "g-000000.0"
    audited = document("audit", lake.root, "--set", "wide", folder=tmp_path, status=1)
    assert audited["rows"] == shown["rows"]


@pytest.mark.slow
def test_killed_and_called_again_with_two_workers(lake: Lake, tmp_path: Path) -> None:
    lake.append([event for number in range(200) for event in finished_group(number, size=4, calls=6)])
    wanted = derived_at_once(lake.root, Params())
    with start(("materialize", lake.root, "--workers", "2"), tmp_path) as process:
        folder = Path(lake.root) / "sets" / "default" / "nodes" / "_delta_log"
        while process.poll() is None and not list(folder.glob("*1.json")):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    shown = document("materialize", lake.root, "--workers", "2", folder=tmp_path)
    assert 0 < shown["new"] <= 200
    assert digests(lake.root, "default") == wanted


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    with s3.bucket(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.mark.slow
def test_a_set_on_s3(server: s3.S3Server, lake: Lake) -> None:
    assert server
    there = Lake("s3://headrace/sets")
    for each in (there, lake):
        each.append([event for number in range(3) for event in finished_group(number)])
        done = materialize(each.root, ["j_max=1"], None, INLINE)
        assert (done.new, done.sound) == (3, True)
    assert digests(there.root, "j_max=1") == digests(lake.root, "j_max=1")
    assert [(row.set, row.groups) for row in listed(there.root)] == [("j_max=1", 3)]
