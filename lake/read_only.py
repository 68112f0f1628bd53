"""What a query may be: one SELECT from tables and models by name, or EXPLAIN, DESCRIBE, SUMMARIZE, SHOW.

    read = check(con, "explain analyze from weights")
    read.text, read.names                          what to run, and the names after FROM

DuckDB's own lock (lake.query) keeps a connection from files outside the lake, the network, extensions and
settings.  What it lets through is refused here, by the tree that its parser makes of the query: a COPY or
INSERT under WITH or EXPLAIN ANALYZE (in DuckDB 2.0 `with x as (copy ... to ...) select ...` is a SELECT), and
every table function but those that compute from their arguments or describe the connection.  What the
parser cannot put into that tree is refused too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import duckdb
import msgspec

from lake.query_errors import QueryError
from lake.statements import statements as split

TABLE_FUNCTIONS = frozenset({
    "range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "histogram",
    "histogram_values", "duckdb_columns", "duckdb_databases", "duckdb_functions", "duckdb_keywords",
    "duckdb_memory", "duckdb_schemas", "duckdb_settings", "duckdb_tables", "duckdb_temporary_files",
    "duckdb_types", "duckdb_views", "pragma_version", "pragma_platform", "pg_timezone_names",
    "icu_calendar_names", "test_all_types",
})  # fmt: skip
"""Table functions that read no file and change nothing."""

READING = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_FILE = re.compile(r"[/\\*?]|\.\w+$")  # a name that DuckDB would take for a file
_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_EXPLAIN = re.compile(
    rf"{_SPACE}explain\b{_SPACE}(?P<analyze>\banaly[sz]e\b{_SPACE})?"
    rf"(?P<options>\((?P<inside>[\w\s,]*)\){_SPACE})?(?P<rest>.*)",
    re.I | re.S,
)
_OPTIONS = re.compile(r"\s*(analy[sz]e|format\s+(json|text|html|graphviz|yaml|mermaid))\s*", re.I)
_SHOW_TABLES = ("tables", '"tables"')


class Read(msgspec.Struct, frozen=True):
    """A query that may run.

    text      what to run: one statement, without its semicolon
    names     the names after FROM in it, in lower case (names of its own WITH too)
    explains  it is an EXPLAIN, which cannot stand in parentheses
    lists     it is SHOW TABLES
    """

    text: str
    names: frozenset[str]
    explains: bool = False
    lists: bool = False


def check(con: duckdb.DuckDBPyConnection, query: str) -> Read:
    """The one read of `query`.  `con` only parses.  Raises QueryError for anything else, duckdb.Error where
    DuckDB cannot parse it.
    """
    statements = duckdb.extract_statements(query)
    kinds = [s.type for s in statements]
    if len(kinds) == 1 and kinds[0] == duckdb.StatementType.EXPLAIN:
        before, rest = _explained(query)
        inner = check(con, rest)
        if inner.explains:
            raise QueryError("EXPLAIN of an EXPLAIN; leave one out")
        return Read(before + inner.text, inner.names, explains=True)
    if len(kinds) != 1 or kinds[0] != duckdb.StatementType.SELECT:
        raise QueryError(_refused(kinds))
    parts = split(query)
    if len(parts) != 1:
        raise QueryError(f"one SELECT is allowed, this is {len(parts)} statements")
    (text,) = parts  # without its semicolon and what follows it
    tree = _tree(con, text)
    names = frozenset(_names(tree))
    return Read(text, names, lists=any(n.get("table_name") in _SHOW_TABLES for n in _of(tree, "SHOW_REF")))


def _refused(kinds: list[duckdb.StatementType]) -> str:
    if any(k.name == "MULTI" for k in kinds):
        return "PIVOT needs its values, `on x in (1, 2)`: without them it is more than one statement"
    what = ", ".join(k.name for k in kinds) or "nothing"
    return f"one SELECT is allowed, this is {what}; the lake is read-only"


def _explained(query: str) -> tuple[str, str]:
    """`explain analyze ` as we write it, and the statement that is explained."""
    found = _EXPLAIN.fullmatch(query)
    if found is None:
        raise QueryError("EXPLAIN, EXPLAIN ANALYZE or EXPLAIN (FORMAT json) is allowed, then one SELECT")
    rest, inside = found["rest"], found["inside"]
    options = ["analyze"] if found["analyze"] else []
    if inside is not None and all(_OPTIONS.fullmatch(part) for part in inside.split(",")):
        options += [" ".join(part.split()) for part in inside.split(",")]
    else:
        rest = (found["options"] or "") + rest
    return ("explain " + (f"({', '.join(options)}) " if options else "")), rest


def _tree(con: duckdb.DuckDBPyConnection, text: str) -> Any:
    """The parser's tree.  Raises QueryError where something in it is no read."""
    (found,) = con.execute("select json_serialize_sql($1::varchar)", [text]).fetchone() or ("{}",)
    document = json.loads(found)
    if document.get("error", True) or len(document.get("statements", ())) != 1:
        raise QueryError(f"not one SELECT: {document.get('error_message', 'the parser has no tree of it')}")
    tree = document["statements"][0]
    for node in _nodes(tree):
        kind = node.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in READING:
            verb = kind.removesuffix("_NODE").removesuffix("_QUERY")
            raise QueryError(f"one SELECT is allowed, this has {verb} in it; the lake is read-only")
    for node in _of(tree, "TABLE_FUNCTION"):
        name = str(node.get("function", {}).get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS:
            raise QueryError(
                f"the table function {name!r} is not allowed: tables and models are read by name, no file, "
                f"no network; there are {', '.join(sorted(TABLE_FUNCTIONS))}"
            )
    for node in _of(tree, "BASE_TABLE"):
        if _FILE.search(node["table_name"]):
            raise QueryError(f"{node['table_name']!r} is no table or model, and files are not read")
    return tree


def _names(tree: Any) -> Iterator[str]:
    return (node["table_name"].lower() for node in _of(tree, "BASE_TABLE"))


def _of(tree: Any, kind: str) -> Iterator[dict[str, Any]]:
    return (node for node in _nodes(tree) if node.get("type") == kind)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in the tree; without recursion: expressions may be nested deeply."""
    ahead = [tree]
    while ahead:
        here = ahead.pop()
        if isinstance(here, dict):
            yield here
            ahead += here.values()
        elif isinstance(here, list):
            ahead += here
