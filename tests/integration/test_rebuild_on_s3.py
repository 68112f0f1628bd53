"""A lake on S3 is made again on S3, and fills a log: the same as on a disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from ingest.executors import Inline, Work
from ingest.rebuild import CannotRebuild, discard, rebuild, replace
from ingest.restore import opened, restore
from lake.store import Store
from lake.table import filesystem
from tests.support.ingested import GROUPS, ingested_run
from tests.support.s3 import bucket


@pytest.mark.slow
def test_a_lake_on_s3_is_made_again_there_and_fills_a_log(tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    with bucket(tmp_path / "s3"):
        run = ingested_run(tmp_path / "run", "lake=s3://headrace/lake", partitions=2)
        done = rebuild(run, Work(Inline()))
        assert (done.differing, done.announced_differing) == ([], [])
        assert done.path.startswith("s3://headrace/lake.rebuild-")
        with pytest.raises(CannotRebuild, match=r"set lake=s3://headrace/lake\.rebuild-"):
            replace(run, done)
        discard(done)
        fs, path = filesystem(done.path)
        fs.invalidate_cache()
        assert set(fs.find(path)) <= {path}  # SeaweedFS keeps the name of an empty folder
        into = f"sqlite://{tmp_path}/other.db"
        with closing(opened(run.lake, Store(run.lake), into, str(tmp_path / "blobs"))) as log:
            filled = restore(Store(run.lake), log)
        assert filled.written == filled.records
        assert filled.dead_letters == GROUPS
