"""The same rows from a real lake however its files are cut: one, many, small row groups, any order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from ingest.executors import Inline, Work
from ingest.sets import materialize
from lake import parquet
from lake.digest import table_digest
from lake.events import TOPICS_BY_GROUP
from lake.optimize import optimize_table
from lake.query import open_lake
from lake.store import Store
from tests.support.recorder import Recorder

OUTPUTS = ("nodes", "leaves", "admitted", "segments", "trees", "weights", "group_statistics", "group_state")
Write = Callable[[Store, str, pa.Table], None]


def recorder() -> Recorder:
    """Groups that overlap in time; executions with two roots, branches, sub-agents, a late score."""
    rng, made = Random(7), Recorder()
    places = [(f"g{g}", f"g{g}/{i}", i) for i in range(3) for g in range(4)]
    for g in range(4):
        made.dispatched(f"g{g}", 3)
    for group, name, index in places:
        made.launched(group, name, index)
    ends = dict.fromkeys((name for _, name, _ in places), 0)
    for call_id in range(8):
        for group, name, _ in places:
            shared = 0 if call_id in (0, 4) else ends[name]
            if call_id in (2, 7):
                shared -= rng.randint(1, 2)  # within the output
            made.called(
                group,
                name,
                call_id,
                at=(call_id - 1, shared) if shared else None,
                role={3: "sub-agent", 6: "sub-agent", 5: "main-summary"}.get(call_id, "main"),
                delivered=call_id != 7,
            )
            ends[name] = shared + 5
    for group, name, index in places:
        made.finished(group, name, 8)
        made.scored(group, name, None if (group, index) == ("g1", 0) else rng.random())
    made.scored("g2", "g2/1", 0.25, version=1)
    return made


def at_once(store: Store, topic: str, rows: pa.Table) -> None:
    store.table(f"events/{topic}", rows.schema).append(rows)


def in_pieces(store: Store, topic: str, rows: pa.Table) -> None:
    for start in range(0, rows.num_rows, 5):
        at_once(store, topic, rows.slice(start, 5))


def in_another_order(store: Store, topic: str, rows: pa.Table) -> None:
    order = list(range(rows.num_rows))
    Random(topic).shuffle(order)
    in_pieces(store, topic, rows.take(pa.array(order, pa.int64())))


def merged(store: Store, topic: str, rows: pa.Table) -> None:
    in_pieces(store, topic, rows)
    optimize_table(store, f"events/{topic}", target_bytes=1 << 20, retain_h=0.0)


def write(root: Path, how: Write) -> str:
    store = Store(str(root))
    for topic, rows in recorder().tables().items():
        name = topic.removeprefix("event_")
        if name in TOPICS_BY_GROUP and rows.num_rows:
            how(store, name, rows)
    return str(root)


def digests(root: str, set_name: str = "default") -> dict[str, str]:
    with closing(open_lake(root, set_name)) as lake:
        return {name: table_digest(lake.arrow(name)) for name in OUTPUTS}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests(write(tmp_path_factory.mktemp("one") / "lake", at_once))


@pytest.mark.parametrize("how", [in_pieces, in_another_order, merged], ids=lambda how: how.__name__)
def test_however_the_rows_lie_in_files(how: Write, wanted: dict[str, str], tmp_path: Path) -> None:
    root = write(tmp_path / "lake", how)
    calls = Store(root).existing("events/calls")
    assert calls is not None
    assert (len(calls.files()) > 1) == (how is not merged)
    assert digests(root) == wanted
    done = materialize(root, [], "kept", Work(Inline()))
    assert (done.new, done.sound) == (4, True)
    assert digests(root, "kept") == wanted


def test_in_one_file_of_many_row_groups(
    wanted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(parquet, "SHARE_BYTES", 0)
    root = write(tmp_path / "lake", at_once)
    calls = Store(root).existing("events/calls")
    assert calls is not None
    (entry,) = calls.entries()
    assert calls.row_groups(entry) > 3
    assert digests(root) == wanted
