"""The columns of the event tables are pinned: other engines read them by name and type.

After a deliberate change, write the file anew:
    HEADRACE_GOLDEN=write python -m pytest tests/golden/test_schemas.py
"""

from __future__ import annotations

import os
from pathlib import Path

from lake.tables import DEAD_LETTERS, SCHEMAS

FILE = Path(__file__).with_name("schemas.txt")


def rendered() -> str:
    lines = []
    for name, schema in (SCHEMAS | {"dead_letters": DEAD_LETTERS}).items():
        lines += [name, *(f"    {f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema), ""]
    return "\n".join(lines)


def test_the_columns_of_every_table_are_pinned() -> None:
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        FILE.write_text(rendered())
    assert rendered() == FILE.read_text()
