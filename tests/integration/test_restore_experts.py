"""Routed experts lie in blobs alone: a restore carries them to other blobs, and counts what it cannot."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ingest.rederive import fresh_lake
from ingest.restore import Restored, old_blobs, restore
from lake.blobs import Blobs
from lake.config import Config
from lake.events import EventError, ModelCalled
from lake.experts import fetch, keep
from lake.layout import Run
from lake.log import open_log
from lake.query import open_lake
from lake.store import Store
from tests.support.run_events import finished_group
from tests.support.running_proxy import read_events

PIECES = 4


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished group in log and lake; some of its calls have experts, two the same ones."""
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.config_file.write_bytes(msgspec.json.encode(Config()))
    blobs = Blobs(run.blobs(Config()))
    calls = [e for e in finished_group(7) if isinstance(e, ModelCalled)][:PIECES]
    named = {}
    for number, call in enumerate(calls):
        rows = np.full((3, 2, 2), min(number, PIECES - 2))
        named[call.event_id] = msgspec.structs.replace(call, experts=keep(blobs, 0, rows, 8))
    with closing(run.open_log()) as log:
        log.append([named.get(e.event_id, e) for e in finished_group(7)])
        fresh_lake(log, Path(run.lake), lambda _sentence: None)
    return run


def pieces(blobs: Blobs, *calls: str) -> list[int]:
    return [int(fetch(blobs, reference).rows[0, 0, 0]) for reference in calls]


def references(run: Run) -> list[str]:
    """As a user finds them."""
    query = "select experts from calls where experts is not null order by execution_id, call_id"
    return [row["experts"] for row in open_lake(run.path).rows(query)]


def restored(run: Run, folder: Path, old: Blobs | None) -> tuple[Restored, Blobs, list[str]]:
    blobs = Blobs(str(folder / "blobs"))
    with closing(open_log(f"sqlite://{folder}/log.db", blobs)) as log:
        done = restore(Store(run.lake), log, old=old)
        found = [e for e in read_events(log, "calls") if isinstance(e, ModelCalled)]
    return done, blobs, [e.experts for e in found if e.experts]


def test_pieces_are_read_by_what_sql_gives_and_come_along(run: Run, tmp_path: Path) -> None:
    there = references(run)
    assert pieces(Blobs(run.blobs(Config())), *there) == [0, 1, 2, 2]
    done, blobs, named = restored(run, tmp_path, old_blobs(str(run.path)))
    assert (done.experts_carried, done.experts_lost) == (PIECES, 0)
    assert named == there
    assert pieces(blobs, *named) == [0, 1, 2, 2]


def test_what_cannot_come_along_is_counted_and_the_rest_restored(run: Run, tmp_path: Path) -> None:
    there = references(run)
    done, _, named = restored(run, tmp_path, None)
    assert (done.experts_carried, done.experts_lost, named) == (0, PIECES, there)
    sha256 = there[0].split(":")[0]
    (Path(run.blobs(Config())) / sha256[:2] / sha256).unlink()
    (tmp_path / "again").mkdir()
    done, blobs, named = restored(run, tmp_path / "again", old_blobs(str(run.path)))
    assert (done.experts_carried, done.experts_lost, named) == (PIECES - 1, 1, there)
    with pytest.raises(EventError, match="is not in"):
        fetch(blobs, there[0])


def test_a_run_that_is_restored_in_place_keeps_them_where_they_lie(run: Run) -> None:
    there = references(run)
    (run.path / "log.db").unlink()
    with closing(run.open_log()) as log:
        done = restore(Store(run.lake), log, old=old_blobs(str(run.path)))
    assert (done.experts_carried, done.experts_lost) == (0, 0)
    assert pieces(Blobs(run.blobs(Config())), *there) == [0, 1, 2, 2]


def test_a_reference_that_is_none_and_bytes_that_are_no_piece_are_refused(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path / "blobs"))
    for wrong in ("", "abc", f"{'0' * 64}:", f"{'0' * 64}:-1"):
        with pytest.raises(EventError, match="is no reference of routed experts: `sha256:bytes`"):
            fetch(blobs, wrong)
    name = blobs.put(b"something else")
    with pytest.raises(EventError, match="14 bytes are no routed experts"):
        fetch(blobs, f"{name}:14")
    for bad in (np.zeros((2, 3), np.int32), np.full((1, 1, 1), 8), np.full((1, 1, 1), -1)):
        with pytest.raises(EventError, match="experts"):
            keep(blobs, 0, bad, 8)
    shutil.rmtree(tmp_path / "blobs")
