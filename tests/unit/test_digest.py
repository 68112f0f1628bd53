"""A digest is of the rows, not of how they lie."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lake.digest import table_digest

ROWS = [
    {"s": "a", "n": 1, "b": True, "f": 0.5, "l": [1, 2], "r": b"x"},
    {"s": None, "n": None, "b": None, "f": None, "l": None, "r": None},
    {"s": "", "n": 0, "b": False, "f": 0.0, "l": [], "r": b""},
]
SCHEMA = pa.schema(
    [
        ("s", pa.string()),
        ("n", pa.int64()),
        ("b", pa.bool_()),
        ("f", pa.float64()),
        ("l", pa.list_(pa.int32())),
        ("r", pa.binary()),
    ]
)
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)


def test_chunks_and_slices_do_not_matter() -> None:
    chunked = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])
    longer = pa.concat_tables([TABLE, TABLE]).combine_chunks().slice(3, 3)
    assert table_digest(TABLE) == table_digest(chunked) == table_digest(longer)


@pytest.mark.parametrize("name", SCHEMA.names)
def test_every_value_and_every_null_counts(name: str) -> None:
    seen = {table_digest(TABLE)}
    for i, j in ((0, 1), (1, 2), (2, 0)):
        changed = [dict(r) for r in ROWS]
        changed[i][name] = ROWS[j][name]
        seen.add(table_digest(pa.Table.from_pylist(changed, SCHEMA)))
    assert len(seen) == 4


def test_order_and_names_count() -> None:
    assert table_digest(TABLE) != table_digest(TABLE.take([1, 0, 2]))
    assert table_digest(TABLE) != table_digest(TABLE.rename_columns(["t", "n", "b", "f", "l", "r"]))


def test_empty_tables_have_a_digest() -> None:
    assert table_digest(SCHEMA.empty_table()) == table_digest(TABLE.slice(0, 0))


def test_the_name_of_a_lists_inner_field_does_not_matter() -> None:
    inner = [pa.list_(pa.field(name, pa.int32())) for name in ("item", "element")]
    one, other = (pa.table({"l": pa.array([[1], None], kind)}) for kind in inner)
    assert table_digest(one) == table_digest(other)
