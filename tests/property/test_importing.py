"""Any executions, their rows in any mixture: what is imported is what a matcher of each of them makes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.importing.coding import Coder, read_calls
from ingest.importing.rows import RawCall
from ingest.importing.run import import_calls
from ingest.importing.spool import Spool
from ingest.importing.writing import LakeWriter
from ingest.matching import Matcher
from lake.events import ROLES, ModelCalled, ids_to_bytes
from lake.store import Store
from tests.support.raw_calls import (
    Row,
    call,
    calls_in,
    check_as_matched,
    contents,
    write_lines,
    write_parquet,
)

tokens = st.lists(st.integers(0, 2) | st.integers(0, 2**31 - 1), max_size=6)


@st.composite
def executions(draw: st.DrawFn, name: str) -> list[Row]:
    """Calls that extend, branch, repeat or begin anew."""
    rows: list[Row] = []
    for number in range(draw(st.integers(1, 6))):
        base: list[int] = []
        if rows and draw(st.booleans()):
            earlier = draw(st.sampled_from(rows))
            base = earlier["input_ids"] + earlier["output_ids"]
            base = base[: draw(st.integers(0, len(base)))] if draw(st.booleans()) else base
        more: Row = {
            "role": draw(st.sampled_from([None, *ROLES])),
            "version": draw(st.none() | st.integers(0, 9)),
        }
        if draw(st.booleans()):
            more["output_logprobs"] = None
        rows.append(call(name, number, base + draw(tokens), draw(tokens), **more))
    return rows


@st.composite
def files(draw: st.DrawFn) -> list[Row]:
    """Rows of a few groups, those of an execution in order."""
    names = draw(st.lists(st.sampled_from(["a/0", "a/1", "b/0", "b/1", "c/0"]), min_size=1, unique=True))
    waiting = [draw(executions(name)) for name in names]
    order = draw(st.permutations([k for k, rows in enumerate(waiting) for _ in rows]))
    return [waiting[k].pop(0) for k in order]


@settings(max_examples=10, deadline=None)
@given(files(), st.sampled_from(["jsonl", "zstd", "gzip"]), st.integers(1, 3))
def test_what_is_imported_is_what_matchers_make_whatever_the_file_is(
    rows: list[Row], kind: str, parts: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        step = -(-len(rows) // parts)
        lines = [
            write_lines(here / f"{k}", rows[k : k + step], None if kind == "jsonl" else kind)
            for k in range(0, len(rows), step)
        ]
        column = write_parquet(here / "calls.parquet", rows)
        for path in (*lines, column):
            os.utime(path, (1e9, 1e9))  # the events' time
        by_line = import_calls([str(p) for p in lines], str(here / "by-line"), open_bytes=20_000)
        by_column = import_calls([str(column)], str(here / "by-column"))
        check_as_matched(here / "by-line", rows)
        assert contents(here / "by-line") == contents(here / "by-column")
        assert by_line.written == by_column.written
        assert by_line.raw_tokens == sum(len(r["input_ids"]) + len(r["output_ids"]) for r in rows)


@settings(max_examples=60, deadline=None)
@given(files(), st.integers(0, 40_000))
def test_parked_and_taken_up_again_makes_no_difference(rows: list[Row], open_bytes: int) -> None:
    """With room for one matcher nearly every row takes its execution up again."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_lines(Path(folder) / "calls", rows))
        found = []
        for room in (open_bytes, 1 << 30):
            with Spool() as spool:
                coder = Coder(spool, 1, room)
                for row in read_calls([path], lambda *_: None):
                    assert isinstance(row, RawCall)
                    assert coder.add(row) is None
                    assert coder.held <= room or coder.open == 1
                found.append(
                    {e.execution_id: spool.calls(e.last) for g in coder.groups.values() for e in g.executions}
                )
                mixed = len({r["execution_id"] for r in rows}) > 1
                assert coder.parked == 0 or (mixed and room < 1 << 30)
        assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(executions("g/0"))
def test_the_relation_says_how_a_call_goes_on(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder, Spool() as spool:
        coder, matcher = Coder(spool, 1), Matcher()
        for row in read_calls([str(write_lines(Path(folder) / "calls", rows))], lambda *_: None):
            assert isinstance(row, RawCall)
            coder.add(row)
        (found,) = (spool.calls(e.last) for g in coder.groups.values() for e in g.executions)
        for number, (row, event) in enumerate(zip(rows, found, strict=True)):
            parent, shared = matcher.insert(number, row["input_ids"], row["output_ids"])
            if parent is None:
                assert event.relation == "restarts"
            else:
                before = rows[parent]["input_ids"] + rows[parent]["output_ids"]
                begins = row["input_ids"][: len(before)] == before
                assert event.relation == ("extends" if begins and shared == len(before) else "branches")
            version = row["version"]
            assert [s.version for s in event.spans] == ([] if version is None else [version])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_events_stand_at_the_offsets_that_follow(sizes: list[int]) -> None:
    """However they are cut into commits."""
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(sizes):
            writer = LakeWriter(Store(folder), 1)
            for call_id in range(size):
                writer.add(
                    ModelCalled(
                        time_us=1, group_id="g", execution_id=f"e{number}", call_id=call_id, role="main",
                        parent_call_id=None, shared_len=0, context_ids=ids_to_bytes([1]),
                        output_ids=b"", output_logprobs=b"", relation="restarts",
                    )
                )  # fmt: skip
            writer.flush()
        found = calls_in(folder)
        assert [len(found.get(f"e{n}", [])) for n in range(len(sizes))] == sizes
        rows = contents(folder)["calls"]
        assert [row["log_offset"] for row in rows] == list(range(sum(sizes)))
