"""The columns of a result as DuckDB writes them for CSV, JSON and Parquet: no list becomes Python numbers.

Each function is a lake.query.Shape: of columns (a reference in SQL, the name, the DuckDB type) it makes the
SELECT list that gives them in a form that the file has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lake.sql_text import identifier, quoted

Columns = Sequence[tuple[str, str, Any]]
NESTED = ("list", "array", "struct", "map", "union", "variant")
WALKED = ("list", "array", "struct", "map")
AS_TEXT = "{0}::varchar"
ISO = "replace({0}::varchar, ' ', 'T')"
IN_JSON = {
    "float": "case when isfinite({0}) then {0} end",
    "double": "case when isfinite({0}) then {0} end",
    "blob": "base64({0})",
    "interval": AS_TEXT,
    "bit": AS_TEXT,
    "json": AS_TEXT,  # it may be anything: what was text stays text
    "timestamp": ISO,
    "timestamp_s": ISO,
    "timestamp_ms": ISO,
    "timestamp_ns": ISO,
    "timestamp with time zone": "strftime({0}, '%Y-%m-%dT%H:%M:%S.%f%z')",
}
IN_CSV = dict.fromkeys(("interval", "bit", "json", "uuid", "enum", "time with time zone"), AS_TEXT) | {
    "blob": "base64({0})"
}
IN_PARQUET = {"interval": AS_TEXT, "bit": AS_TEXT}


def _kind(kind: Any) -> str:
    return "json" if str(kind) == "JSON" else str(kind.id)


def json_row(columns: Columns) -> str:
    """One column: the row as a JSON object."""
    taken: dict[str, str] = {}
    for reference, name, kind in columns:
        free = name
        while free.lower() in taken:
            free += "_1"
        taken[free.lower()] = f"{identifier(free)} := {_json(reference, kind)}"
    return f"to_json(struct_pack({', '.join(taken.values())}))::varchar as row"


def csv_columns(columns: Columns) -> str:
    """Lists and structs as JSON, bytes as base64."""
    return ", ".join(f"{_csv(reference, kind)} as {identifier(name)}" for reference, name, kind in columns)


def parquet_columns(columns: Columns) -> str:
    """All as they are, but for what Parquet has no type for."""
    return ", ".join(
        f"{IN_PARQUET.get(_kind(kind), '{0}').format(reference)} as {identifier(name)}"
        for reference, name, kind in columns
    )


def _csv(reference: str, kind: Any) -> str:
    if kind.id in NESTED:
        return f"to_json({_json(reference, kind)})::varchar"
    return IN_CSV.get(_kind(kind), "{0}").format(reference)


def _json(value: str, kind: Any, depth: int = 0) -> str:
    """An expression that `to_json` writes as strict JSON."""
    if kind.id not in WALKED or not _differs(kind):
        return IN_JSON.get(_kind(kind), "{0}").format(value)
    item = f"x{depth}"
    if kind.id in ("list", "array"):
        return f"list_transform({value}, lambda {item}: {_json(item, _child(kind, 'child'), depth + 1)})"
    if kind.id == "map":
        key, inner = (_json(f"{item}.{part}", _child(kind, part), depth + 1) for part in ("key", "value"))
        pairs = f"list_transform(map_entries({value}), lambda {item}: struct_pack(k := {key}, v := {inner}))"
        return f"case when {value} is not null then map_from_entries({pairs}) end"
    fields = ", ".join(
        f"{identifier(name)} := {_json(f'struct_extract({value}, {quoted(name)})', inner, depth + 1)}"
        for name, inner in kind.children
    )
    return f"case when {value} is not null then struct_pack({fields}) end"


def _differs(kind: Any) -> bool:
    """Whether something in a nested type is written otherwise than `to_json` would."""
    if kind.id in WALKED:
        return any(_differs(inner) for _, inner in kind.children if not isinstance(inner, int))  # a size
    return _kind(kind) in IN_JSON


def _child(kind: Any, name: str) -> Any:
    return next(inner for label, inner in kind.children if label == name)
