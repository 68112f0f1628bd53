"""Imported lakes: each event once, whatever is imported again; readable and restorable as any lake."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingest.importing.rows import CannotImport
from ingest.importing.run import Imported, import_calls
from ingest.restore import opened, restore
from ingest.tables import copy_all
from lake.config import Config
from lake.layout import Run
from lake.log import open_log
from lake.query import open_lake
from lake.store import Fenced, Store
from tests.support.raw_calls import (
    Row,
    audit,
    call,
    calls_in,
    check_as_matched,
    contents,
    group,
    write_lines,
)
from tests.support.s3 import bucket

ROWS = group("a", 3) + group("b", 2)
SCORES: list[Row] = [
    {"execution_id": "a/0", "score": 1.0},
    {"execution_id": "a/1", "score": 0, "status": "scored"},
    {"execution_id": "a/2", "score": 0.5, "status": "harness_timeout"},
    {"execution_id": "b/0", "status": "crashed"},
    {"execution_id": "b/2", "group_id": "b", "status": "lost"},
]


def imported(
    tmp_path: Path, rows: list[Row | bytes], scores: list[Row] = SCORES, into: str = "lake"
) -> Imported:
    files = [write_lines(tmp_path / "calls.jsonl", rows), write_lines(tmp_path / "scores.jsonl", scores)]
    for path in files:
        os.utime(path, (1e9, 1e9))
    return import_calls([str(files[0])], str(tmp_path / into), [str(files[1])])


def query(tmp_path: Path, sql: str, into: str = "lake") -> list[tuple[Any, ...]]:
    lake = open_lake(tmp_path / into)
    try:
        return lake.sql(sql).fetchall()
    finally:
        lake.close()


def test_every_model_reads_it_and_no_audit_finds_anything(tmp_path: Path) -> None:
    done = imported(tmp_path, [*ROWS])
    check_as_matched(tmp_path / "lake", ROWS)
    assert (done.rows, done.rows_refused, done.written.groups, done.written.executions) == (20, 0, 2, 6)
    assert audit(tmp_path / "lake") == {}
    assert query(tmp_path, "select execution_id, status, calls, index from executions order by all") == [
        ("a/0", "completed", 4, 0), ("a/1", "completed", 4, 1), ("a/2", "harness_timeout", 4, 2),
        ("b/0", "crashed", 4, 0), ("b/1", "completed", 4, 1), ("b/2", "lost", 0, 2),
    ]  # fmt: skip
    assert query(tmp_path, "select execution_id, assessment, value from assessments order by all") == [
        ("a/0", "scored", 1.0), ("a/1", "scored", 0.0), ("a/2", "partial", 0.5),
        ("b/0", "missing", None), ("b/1", "missing", None), ("b/2", "missing", None),
    ]  # fmt: skip
    assert query(tmp_path, "select group_id, size, complete from group_state order by all") == [
        ("a", 3, True), ("b", 3, True),
    ]  # fmt: skip
    weights = dict(query(tmp_path, "select execution_id, n_targets from weights where group_id = 'a'"))
    assert weights == {"a/0": 8, "a/1": 8, "a/2": 8}
    dispatched = query(tmp_path, "select group_id, dispatch_version, task from groups order by all")
    assert dispatched == [("a", 3, "{}"), ("b", 3, "{}")]
    assert query(tmp_path, "select version_first, count(*) from calls group by all order by all") == [
        (3, 10),
        (4, 10),
    ]


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    bad: list[Row | bytes] = [b"{}", ROWS[0]]  # the second: the same call of the same execution twice
    first = imported(tmp_path, [*ROWS, *bad])
    before = contents(tmp_path / "lake")
    again = imported(tmp_path, [*ROWS, *bad])
    assert contents(tmp_path / "lake") == before
    assert first.rows_refused == again.rows_refused == 2
    assert (again.written.executions, again.written.executions_skipped, again.written.calls) == (0, 6, 0)
    assert again.written.executions_refused == {}
    file = tmp_path / "calls.jsonl"
    assert [(r["topic"], r["log_offset"], r["reason"]) for r in before["dead_letters"]] == [
        ("import", 0, f"{file}:21: execution_id is missing"),
        ("import", 1, f"{file}:22: call 0 of a/0 stands in an earlier row"),
    ]


def test_an_execution_with_other_calls_is_refused_by_name(tmp_path: Path) -> None:
    imported(tmp_path, [*ROWS])
    before = contents(tmp_path / "lake")
    other = [
        r | {"output_ids": [9, 9]} if r["execution_id"] == "a/1" and r["call_id"] == 2 else r for r in ROWS
    ]
    shorter = [r for r in ROWS if (r["execution_id"], r["call_id"]) != ("b/1", 3)]
    for rows, name in ((other, "a/1"), (shorter, "b/1")):
        done = imported(tmp_path, [*rows])
        assert list(done.written.executions_refused) == [name]
        assert "in the lake with other calls" in done.written.executions_refused[name]
        assert done.written.executions_skipped == 5
    longer = [*ROWS, call("b/0", 4, [1], [2]), call("a/9", 0, [1], [2]), call("c/0", 0, [1], [2])]
    done = imported(tmp_path, longer)
    assert done.written.executions_refused.keys() == {"b/0", "a/9"}
    assert "the group a is in the lake without it" in done.written.executions_refused["a/9"]
    assert (done.written.executions, done.written.executions_skipped) == (1, 5)
    after = contents(tmp_path / "lake")
    assert {t: rows[: len(before[t])] for t, rows in after.items()} == before
    assert len(after["calls"]) == len(before["calls"]) + 1


def test_a_score_that_comes_later_counts(tmp_path: Path) -> None:
    """Another number is a later version; no row of scores says nothing."""
    imported(tmp_path, [*ROWS], scores=[])
    assert query(tmp_path, "select distinct assessment from assessments") == [("missing",)]
    late = [{"execution_id": "a/0", "score": 2.0}, {"execution_id": "a/1", "score": 3.0}]
    for _ in range(2):
        imported(tmp_path, [*ROWS], scores=late)
    imported(tmp_path, [*ROWS], scores=late[:1])
    found = query(
        tmp_path, "select execution_id, value, version from scores where value is not null order by all"
    )
    assert found == [("a/0", 2.0, 1), ("a/1", 3.0, 1)]
    assert dict(query(tmp_path, "select execution_id, value from assessments where value is not null")) == {
        "a/0": 2.0,
        "a/1": 3.0,
    }


def test_what_has_no_log_probabilities_is_kept_and_never_trained(tmp_path: Path) -> None:
    rows = [r | {"output_logprobs": None} if r["execution_id"] == "a/0" else r for r in ROWS]
    imported(tmp_path, [*rows], scores=[{"execution_id": f"a/{n}", "score": n} for n in range(3)])
    assert query(tmp_path, "select n_targets from weights where execution_id = 'a/0'") in ([(0,)], [])
    counted = query(
        tmp_path, "select count(*), count(output_logprobs) from event_calls where execution_id = 'a/0'"
    )
    assert counted == [(4, 0)]
    assert audit(tmp_path / "lake") == {}


def test_ids_of_calls_are_numbers_in_order_and_the_old_ones_are_kept(tmp_path: Path) -> None:
    rows = [
        call("g/0", number, [1, k], [k]) | {"call_id": number} for k, number in enumerate([0, "x", 7, 3, "4"])
    ]
    done = imported(tmp_path, [*rows, rows[1]], scores=[])
    assert done.rows_refused == 1
    assert [(c.call_id, c.sampling) for c in calls_in(tmp_path / "lake")["g/0"]] == [
        (0, "{}"),
        (1, '{"imported_call_id":"x"}'),
        (2, '{"imported_call_id":7}'),
        (3, "{}"),
        (4, '{"imported_call_id":"4"}'),
    ]


def test_rows_of_another_group_and_scores_of_nobody_are_refused(tmp_path: Path) -> None:
    moved = call("a/0", 9, [1], [2]) | {"group_id": "b"}
    scores = [
        {"execution_id": "nobody", "score": 1},
        {"execution_id": "a/0", "score": 1},
        {"execution_id": "a/0", "score": 2},
        {"execution_id": "a/1", "score": 1, "group_id": "b"},
    ]
    done = imported(tmp_path, [*ROWS, moved], scores)
    reasons = [refused.reason for refused in done.first_refused]
    assert reasons[0] == "a/0 is of the group a above, here of b"
    assert reasons[1] == f"a/0 has a score already, at {tmp_path / 'scores.jsonl'}:2"
    assert reasons[2].startswith(
        "no call of nobody is in these files; if it made none, give its group_id here"
    )
    assert reasons[3] == "a/1 is of the group a, here of b"
    check_as_matched(tmp_path / "lake", ROWS)


def test_a_log_is_filled_from_it_and_makes_the_same_lake(tmp_path: Path) -> None:
    imported(tmp_path, [*ROWS, b"{}"])
    store = Store(str(tmp_path / "lake"))
    with closing(opened(str(tmp_path / "lake"), store, f"sqlite://{tmp_path / 'log.db'}", None)) as log:
        done = restore(store, log)
    assert (done.gaps, done.dead_letters) == (0, 0)
    with closing(open_log(f"sqlite://{tmp_path / 'log.db'}")) as log:
        copy_all(log, Store(str(tmp_path / "again")))
    before, after = contents(tmp_path / "lake"), contents(tmp_path / "again")
    for name in ("calls", "executions", "scores", "groups"):
        assert after[name] == before[name]


def test_a_run_and_a_lake_that_follows_a_log_are_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(Config()))
    path = str(write_lines(tmp_path / "calls.jsonl", ROWS))
    for into in (run.path, run.path / "lake"):
        with pytest.raises(CannotImport, match=r"belongs to the run .*; import into a lake of its own"):
            import_calls([path], str(into))
    assert not (run.path / "lake").exists()
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')  # somebody else's
    with closing(open_log(f"sqlite://{tmp_path / 'log.db'}")) as log:
        copy_all(log, Store(str(tmp_path / "followed")))
    with pytest.raises(CannotImport, match="is filled from a log, whose offsets stand in it"):
        import_calls([path], str(tmp_path / "followed"))
    with pytest.raises(CannotImport, match=r"calls\.jsonl is a file"):
        import_calls([path], path)
    with pytest.raises(CannotImport, match="nowhere is no file"):
        import_calls([path, "nowhere"], str(tmp_path / "lake"))
    assert import_calls([path], str(tmp_path / "lake")).written.executions == 5


def test_two_imports_at_once_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commits while the first one reads: the first is refused, and nothing is twice."""
    from ingest.importing import writing

    write = writing.Importer.write

    def late(self: Any, groups: Any, watch: Any) -> Any:
        monkeypatch.setattr(writing.Importer, "write", write)
        imported(tmp_path, [*ROWS])
        return write(self, groups, watch)

    monkeypatch.setattr(writing.Importer, "write", late)
    with pytest.raises(Fenced):
        imported(tmp_path, [*ROWS])
    check_as_matched(tmp_path / "lake", ROWS)
    assert imported(tmp_path, [*ROWS]).written.executions_skipped == 6


def test_a_lake_on_s3_is_the_local_one(tmp_path: Path) -> None:
    imported(tmp_path, [*ROWS, b"{}"])
    (tmp_path / "s3").mkdir()
    with bucket(tmp_path / "s3"):
        files = str(tmp_path / "calls.jsonl"), str(tmp_path / "scores.jsonl")
        for executions in (6, 0):
            done = import_calls(files[:1], "s3://headrace/imported", files[1:])
            assert done.written.executions == executions
        assert contents("s3://headrace/imported") == contents(tmp_path / "lake")
        assert audit("s3://headrace/imported") == {}
