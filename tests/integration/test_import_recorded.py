"""Calls that a proxy recorded, written out whole and imported: the same trees, paths and weights."""

from __future__ import annotations

import tarfile
from pathlib import Path

from ingest.importing.run import import_calls
from lake.query import open_lake
from tests.support.raw_calls import write_lines
from tests.support.raw_of_lake import COMPARED, PLAIN, derived, raw_rows, scores_of

RECORDED = Path(__file__).parents[1] / "golden" / "recorded" / "v1.tar.xz"


def test_a_recorded_lake_imported_again(tmp_path: Path) -> None:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path / "recorded", filter="data")
    lake = open_lake(tmp_path / "recorded" / "lake")
    groups = ", ".join(f"'{group}'" for (group,) in lake.sql(PLAIN).fetchall())
    executions = lake.sql(
        f"select execution_id from executions where group_id in ({groups}) order by group_id, index"
    ).fetchall()
    calls = write_lines(tmp_path / "calls", raw_rows(lake.root, [e for (e,) in executions]))
    scores = write_lines(tmp_path / "scores", scores_of(lake, groups))
    done = import_calls([str(calls)], str(tmp_path / "lake"), [str(scores)])
    assert (done.written.groups, done.written.executions, done.rows_refused) == (6, 24, 0)
    ours, theirs = derived(lake, groups), derived(open_lake(tmp_path / "lake"), groups)
    for name in COMPARED:
        assert ours[name].num_rows > 0
        assert ours[name].equals(theirs[name]), name
