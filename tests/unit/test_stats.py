"""Sizes of a lake from footers alone: counted tokens are those that are there, whatever lists are empty."""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from lake.layout import NotARun, lake_root
from lake.query import open_lake
from lake.stats import SMALL_FILES_MAX, stats
from lake.store import Store
from lake.tables import SCHEMAS

SCHEMA = SCHEMAS["calls"]
LISTS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
ROWS = st.lists(st.one_of(st.none(), st.tuples(LISTS, LISTS)), max_size=12)


def calls(rows: list[tuple[list[int], list[int]] | None]) -> pa.Table:
    """Rows of `events/calls`: None is an event without lists, such as reply.undelivered."""
    given = [
        {"event_id": str(n), "group_id": f"g-{n % 3}", "type": "reply.undelivered"}
        | (
            {}
            if row is None
            else {
                "type": "model.called",
                "context_ids": row[0],
                "output_ids": row[1],
                "output_logprobs": [-0.5] * len(row[1]),
                "n_context": len(row[0]),
                "n_output": len(row[1]),
                "n_logprobs": len(row[1]),
            }
        )
        for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(given, SCHEMA)


@settings(max_examples=40, deadline=None)
@given(commits=st.lists(ROWS, min_size=1, max_size=3))
def test_tokens_are_counted_without_reading_them(commits) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = Store(root).table("events/calls", SCHEMA)
        for rows in commits:
            table.append(calls(rows), {"log/calls/0": 1})
        found = stats(root)
    there = [row for rows in commits for row in rows if row is not None]
    unique = sum(len(c) + len(o) for c, o in there)
    assert found.calls is not None
    assert found.calls.exact
    assert found.calls.calls == len(there)
    assert found.calls.unique_tokens == unique
    assert found.calls.sampled_tokens == sum(len(o) for _, o in there)
    (one,) = found.tables
    assert (one.rows, one.files) == (sum(map(len, commits)), sum(bool(rows) for rows in commits))
    assert one.version == len(commits)
    if unique:
        parts = dict(found.calls.bytes_per_token)
        assert parts.pop("all") == pytest.approx(sum(parts.values()))
        assert found.calls.bytes_per_token["all"] * found.calls.unique_tokens == pytest.approx(one.bytes)


def test_it_reads_the_ends_of_files_only(tmp_path: Path) -> None:
    table = Store(str(tmp_path)).table("events/calls", SCHEMA)
    table.append(calls([(list(range(50_000)), [7, 8])] * 4), {"log/calls/0": 1})
    before = stats(str(tmp_path))
    (file,) = (tmp_path / "events/calls").glob("*.parquet")
    size = file.stat().st_size
    assert size > 150_000
    with file.open("r+b") as handle:  # whoever reads a page of it, fails
        handle.seek(4)
        handle.write(b"\xff" * (size // 2))
    assert stats(str(tmp_path)) == before
    assert before.calls is not None
    assert before.calls.unique_tokens == 4 * 50_002
    assert before.calls.sampled_tokens == 8


def test_many_small_files_get_a_hint_and_sets_and_dead_letters_are_counted(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    small = pa.table({"group_id": ["g"], "n": pa.array([1], pa.int64())})
    table = store.table("sets/default/weights", small.schema)
    for _ in range(SMALL_FILES_MAX + 1):
        table.append(small)
    store.table("events/dead_letters", small.schema).append(small)
    found = stats(str(tmp_path))
    assert (found.dead_letters, found.calls) == (1, None)
    assert f"sets/default/weights has {SMALL_FILES_MAX + 1} files" in found.hint
    assert "headrace lake optimize" in found.hint
    assert found.files == found.small_files == SMALL_FILES_MAX + 2


def test_the_command_shows_them(tmp_path: Path) -> None:
    Store(str(tmp_path)).table("events/calls", SCHEMA).append(calls([([1, 2], [3])]), {"log/calls/0": 1})
    shown = CliRunner().invoke(headrace.cli, ["lake", "stats", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "1 calls, 3 unique tokens, 1 of them sampled" in shown.output
    as_json = CliRunner().invoke(headrace.cli, ["lake", "stats", str(tmp_path), "--json"])
    document = json.loads(as_json.output)
    assert document["calls"]["unique_tokens"] == 3
    assert document["tables"][0]["table"] == "events/calls"
    with pytest.raises(NotARun, match="no tables"):
        stats(str(tmp_path / "events"))


def test_a_lake_of_the_previous_version_is_told_nearly(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parents[1] / "golden/recorded/v1.tar.xz") as recorded:
        recorded.extractall(tmp_path, filter="data")
    found = stats(lake_root(tmp_path)).calls
    assert found is not None
    assert not found.exact
    counted = open_lake(tmp_path).rows(
        "select sum(n_context) c, sum(n_output) o, count(*) n from event_calls"
    )[0]
    assert 0 <= found.unique_tokens - counted["c"] - counted["o"] <= 2 * counted["n"]
    assert found.bytes_per_token["all"] > found.bytes_per_token["output_logprobs"] > 0
