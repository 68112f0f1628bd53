"""The shipped demo, as the README shows it: it learns, its log replays, its identities hold."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest

import headrace
from lake.query import open_lake
from tests.e2e.conftest import Demo
from tests.support.command import check_whole, document
from tests.support.command import headrace as command
from tests.support.raw_calls import write_lines
from tests.support.raw_of_lake import COMPARED, PLAIN, derived, raw_rows, scores_of

README = Path(__file__).parents[2] / "README.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_it_learns(demo: Demo) -> None:
    said = demo.said
    assert set(said) == {"steps", "seconds", "score_first5", "score_last5", "tokens", "run"}
    assert said["steps"] == 36
    assert said["score_last5"] - said["score_first5"] >= 0.3


def test_the_whole_run_holds_and_replays_bit_for_bit(demo: Demo) -> None:
    check_whole(demo.folder, "runs/demo", 36)


def test_a_range_of_steps_replays_from_a_checkpoint(demo: Demo) -> None:
    said = document("replay", "runs/demo", "--check", "--steps", "34..35", folder=demo.folder)
    assert said == {"steps": 2, "equal": 2, "differing": []}


def test_other_rules_make_another_set_beside_the_first(demo: Demo) -> None:
    before = document("sql", "runs/demo", "select count(*) as n from admitted", folder=demo.folder)
    said = document("replay", "runs/demo", "--set", "j_max=1", folder=demo.folder)
    assert said["name"] == "j_max=1"
    assert said["differing"]
    one = document(
        "sql", "runs/demo", "select max(path) as paths from admitted", "--set", "j_max=1", folder=demo.folder
    )
    assert one == [{"paths": 1}]
    assert document("sql", "runs/demo", "select count(*) as n from admitted", folder=demo.folder) == before
    beside = document("report", "runs/demo", folder=demo.folder)["replays"]["j_max=1"]
    assert [s["step"] for s in beside] == list(range(36))
    assert all(s["targets replay"] < s["targets run"] for s in beside)


def test_the_shape_of_the_task_is_in_the_lake(demo: Demo) -> None:
    query = """
        select
            count(*) filter (relation = 'branches') as branches,
            count(*) filter (retry_of is not null) as retries,
            count(*) filter (not delivered) as undelivered,
            count(distinct role) as roles,
            (select count(*) from assessments where assessment = 'partial') as partial,
            (select count(*) from assessments where assessment = 'missing') as missing,
            (select count(*) from tools) as tools
        from calls
    """
    (found,) = document("sql", "runs/demo", query, folder=demo.folder)
    assert found["roles"] == 3
    assert all(n > 0 for name, n in found.items() if name != "branches"), found


def test_every_sampled_token_that_may_train_is_a_target_once(demo: Demo) -> None:
    query = """
        with consumed as (select group_id from groups where state = 'CONSUMED'),
        mine as (select * from nodes where group_id in (from consumed) and trainable),
        counted as (
            select group_id, execution_id, call_id, depth_start, count(*) as n
            from segments where target and group_id in (from consumed) group by all
        )
        select
            (select max(n) from counted) as most,
            (select sum(depth_end - depth_start) from mine) as sampled,
            (select sum(length) from segments where target and group_id in (from consumed)) as targets
    """
    (found,) = document("sql", "runs/demo", query, folder=demo.folder)
    assert found["most"] == 1
    assert 0.9 * found["sampled"] <= found["targets"] <= found["sampled"]


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(), re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_readme_has_commands() -> None:
    assert len(readme_commands()) >= 8


@pytest.mark.parametrize("line", [c for c in readme_commands() if " replay " not in c])  # run above
def test_every_command_of_the_readme_runs(demo: Demo, line: str) -> None:
    name, *arguments = shlex.split(line)
    assert name == "headrace"
    assert command(*arguments, folder=demo.folder).stdout.strip()


def test_the_readmes_python_runs(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo.folder)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    (code,) = (block for block in blocks if "headrace.open" in block)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["run"], type(headrace.open("runs/demo")))


def test_the_report_has_what_one_asks_first(demo: Demo) -> None:
    report = document("report", "runs/demo", folder=demo.folder)
    assert len(report["progress"]) == 36
    assert report["staleness"][0]["difference"] == 0
    shown = command("report", "runs/demo", folder=demo.folder).stdout
    assert "staleness, measured" in shown


def test_the_demos_calls_imported_again_make_the_same_trees_paths_and_weights(
    demo: Demo, tmp_path: Path
) -> None:
    lake = open_lake(demo.folder / "runs/demo")
    groups = ", ".join(f"'{group}'" for (group,) in lake.sql(PLAIN).fetchall())
    executions = lake.sql(
        f"select execution_id from executions where group_id in ({groups}) order by group_id, index"
    ).fetchall()
    assert len(executions) > 200
    write_lines(tmp_path / "calls.zst", raw_rows(lake.root, [e for (e,) in executions]), "zstd")
    write_lines(tmp_path / "scores", scores_of(lake, groups))
    said = document("import", "calls", "calls.zst", "--into", "again", "--scores", "scores", folder=tmp_path)
    assert said["executions"] == len(executions)
    ours, theirs = derived(lake, groups), derived(open_lake(tmp_path / "again"), groups)
    for name in COMPARED:
        assert ours[name].num_rows > 0
        assert ours[name].equals(theirs[name]), name


def test_wrong_use_is_status_2_with_a_sentence(demo: Demo, tmp_path: Path) -> None:
    cases = {
        ("sql", "nowhere", "select 1"): "neither a run nor a lake",
        ("sql", "runs/demo", "drop view weights"): "read-only",
        ("sql", "runs/demo", "from nothing"): "nothing",
        ("run", "nothing"): "no configuration 'nothing'",
        ("run", "demo", "--set", "steps=7"): "a multiple of rollout.mu",
        ("run", "runs/demo", "--set", "steps=9"): "has its settings already",
        ("replay", "runs/demo", "--check", "--set", "j_max=1"): "leave --set out",
        ("replay", "runs/demo", "--steps", "30..60"): "committed steps 0..35",
        ("audit",): "Missing argument",
    }
    for arguments, said in cases.items():
        assert said in command(*arguments, folder=demo.folder, status=2).stderr


def test_a_check_that_finds_a_difference_is_status_1(demo: Demo, tmp_path: Path) -> None:
    """Corrupt one committed digest in a copy of the log: exactly that step must be named."""
    run = tmp_path / "runs" / "copy"
    run.mkdir(parents=True)
    for name in ("config.json", "log.db", "log.db-wal", "weights"):
        source = demo.folder / "runs" / "demo" / name
        if source.is_dir():
            shutil.copytree(source, run / name)
        elif source.exists():
            shutil.copyfile(source, run / name)
    (step,) = document("sql", "runs/demo", "select digest from steps where step = 1", folder=demo.folder)
    digest = step["digest"]
    changed = 0
    with sqlite3.connect(run / "log.db") as db:
        tables = [t for (t,) in db.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            columns = [c[1] for c in db.execute(f"pragma table_info({table})")]
            if "value" in columns:
                changed += db.execute(
                    f"update {table} set value = cast(replace(cast(value as text), ?, ?) as blob) "
                    "where instr(value, cast(? as blob)) > 0",
                    (digest, "0" * 64, digest),
                ).rowcount
    assert changed == 1
    said = document("replay", "runs/copy", "--check", "--steps", "0..3", folder=tmp_path, status=1)
    assert said == {"steps": 4, "equal": 3, "differing": [1]}
