"""Statements are told apart as DuckDB tells them, also in the middle of typing."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.statements import pieces, split, statements

PIECES = st.sampled_from(
    [
        "select 1", "select ';'", "select 'it''s; -- one' as \"a;b\"", "select e'\\';' as x", "from calls",
        "select $$ ; ' $$ as d", "select $tag$ $$ ; $tag$ as t", "select 1 -- ; two\n + 2",
        "select /* ; ' */ 3", "explain select 'x'",
    ]
)  # fmt: skip


@given(st.lists(PIECES, min_size=1, max_size=5), st.sampled_from(["", ";", " ; -- end", ";\n/* ; */"]))
def test_what_was_joined_is_split_again(parts: list[str], end: str) -> None:
    text = ";\n".join(parts) + end
    assert [s.partition(" --")[0] if s.endswith("end") else s for s in statements(text)] == parts
    assert len(duckdb.extract_statements(text)) == len(parts)


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        ("", [], ""),
        (" ; ;; -- x", [], ""),
        ("select 1", [], "select 1"),
        ("select 1; sel", ["select 1"], "sel"),
        ("select 'not; yet", [], "select 'not; yet"),
        ('select "not; yet', [], 'select "not; yet'),
        ("select $$ not; yet", [], "select $$ not; yet"),
        ("select 1 /* not; yet", [], "select 1 /* not; yet"),
        ("select 1; -- and\n", ["select 1"], ""),
        ("-- first\nselect 1;", ["-- first\nselect 1"], ""),
    ],
)
def test_what_is_finished_and_what_is_not(text: str, finished: list[str], rest: str) -> None:
    assert split(text) == (finished, rest)


def test_commands_stand_between_statements() -> None:
    text = ".limit 3\nselect 1;\n.tables\nselect\n.5 as a;\n .quit"
    assert list(pieces(text)) == [".limit 3", "select 1", ".tables", "select\n.5 as a", ".quit"]
