"""Where row groups are cut, and that reading groups gives their rows and little else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake import parquet
from lake.parquet import ROW_BYTES, SHARE_BYTES, by_group, row_groups
from lake.store import Store

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("raw", pa.binary()),
    ]
)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 6)),
        st.one_of(st.none(), st.integers(0, 3000)),
        st.integers(0, 40),
    ),
    max_size=40,
)


def table(drawn: list[tuple[int | None, int | None, int]], start: int = 0) -> pa.Table:
    return pa.table(
        {
            "group_id": [None if g is None else f"g-{g}" for g, _, _ in drawn],
            "log_partition": [0] * len(drawn),
            "log_offset": range(start, start + len(drawn)),
            "ids": [None if n is None else np.arange(n) for _, n, _ in drawn],
            "logprobs": [None if n is None else np.zeros(n % 7) for _, n, _ in drawn],
            "raw": [b"x" * k for _, _, k in drawn],
        },
        SCHEMA,
    )


@settings(deadline=None)
@given(ROWS)
def test_rows_are_sorted_by_group_and_keep_their_order(drawn: list) -> None:
    rows = table(drawn)
    wanted = sorted(rows.to_pylist(), key=lambda r: (r["group_id"] is None, r["group_id"] or ""))
    assert by_group(rows).to_pylist() == wanted
    assert by_group(by_group(rows).take(np.arange(len(drawn))[::-1]), log_order=True).to_pylist() == wanted


@settings(deadline=None)
@given(ROWS)
def test_a_row_group_is_one_groups_or_small(drawn: list) -> None:
    rows = by_group(table(drawn))
    cuts = list(row_groups(rows))
    assert [row for low, high in cuts for row in range(low, high)] == list(range(rows.num_rows))
    for low, high in cuts:
        own: dict[str | None, int] = {}
        for row in rows.slice(low, high - low).to_pylist():
            size = ROW_BYTES + 4 * len(row["ids"] or ()) + 4 * len(row["logprobs"] or ()) + len(row["raw"])
            own[row["group_id"]] = own.get(row["group_id"], 0) + size
        assert len(own) == 1 or sum(own.values()) <= SHARE_BYTES


def test_large_groups_are_cut_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = table([(0, None, 0)] * 4500)
    assert list(row_groups(narrow)) == [(0, 2000), (2000, 4000), (4000, 4500)]
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 10_000)
    wide = table([(0, 1000, 0)] * 7 + [(1, 9000, 0), (2, 9000, 0)])
    assert list(row_groups(wide)) == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 8), (8, 9)]
    assert list(row_groups(SCHEMA.empty_table())) == []


@settings(max_examples=15, deadline=None)
@given(st.lists(ROWS, max_size=4), st.sets(st.integers(0, 8)))
def test_reading_groups_equals_reading_all_and_choosing(commits: list, groups: set[int]) -> None:
    wanted = [f"g-{g}" for g in groups]
    with tempfile.TemporaryDirectory() as folder:
        t = Store(folder).table("t", SCHEMA)
        start = 0
        for drawn in commits:
            t.append(table(drawn, start), {"a": start})
            start += len(drawn)
        whole = t.read()
        assert whole.num_rows == start
        assert t.read(wanted).to_pylist() == [r for r in whole.to_pylist() if r["group_id"] in wanted]
        assert t.read(wanted, ["log_offset"]).column_names == ["log_offset"]
        tail = t.tail(["log_offset"], 5)["log_offset"].to_pylist()
        assert set(range(max(0, start - 5), start)) <= set(tail)


GROUPS, EXECUTIONS = 8, 4


def interleaved(commits: int, tokens: int) -> list[list[tuple[int, int, int]]]:
    """Each commit has one call of every execution of every group, in turn."""
    rng = np.random.default_rng(4)
    return [
        [(g, int(rng.integers(tokens // 2, tokens)), 0) for _ in range(EXECUTIONS) for g in range(GROUPS)]
        for _ in range(commits)
    ]


@pytest.mark.parametrize("tokens", [400, 4000])
def test_a_group_is_read_with_at_most_twice_its_token_bytes(tmp_path: Path, tokens: int) -> None:
    t = Store(str(tmp_path)).table("t", SCHEMA)
    for number, drawn in enumerate(interleaved(6, tokens)):
        t.append(table(drawn, number * len(drawn)), {"a": number})
    for group in range(GROUPS):
        before = t.reads.token_bytes
        rows = t.read([f"g-{group}"], ["ids", "logprobs"])
        own = sum(4 * len(v) for name in ("ids", "logprobs") for v in rows[name].to_pylist())
        assert rows.num_rows == 6 * EXECUTIONS
        assert own <= t.reads.token_bytes - before <= 2 * own
    assert t.reads.footers == 6  # of each file once


def _chunks(path: str) -> dict[str, tuple[str, bool, bool]]:
    """Column -> (compression, has a dictionary, has statistics) in the first row group."""
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    return {
        c.path_in_schema: (c.compression, c.has_dictionary_page, c.statistics is not None) for c in chunks
    }


@pytest.mark.parametrize("groups", [1, 40])
def test_lists_are_plain_and_compressed_whatever_else_is(tmp_path: Path, groups: int) -> None:
    t = Store(str(tmp_path)).table("t", SCHEMA)
    t.append(table([(n % groups, 2500, 10) for n in range(120)]))
    (path,) = t.files()
    found = _chunks(path)
    for name in ("ids.list.element", "logprobs.list.element", "raw"):
        assert found[name] == ("ZSTD", False, False)
    assert found["group_id"][2]
    assert found["log_offset"][2]
    assert found["group_id"][:2] == (("ZSTD", True) if groups == 1 else ("UNCOMPRESSED", False))
