"""Every benchmark of this folder: `make bench`, or `python -m tests.bench [NAME ...]` for some of them.

A benchmark is a module `bench_*.py` with `run() -> list[dict]`; each row has id, what, value, unit,
bound (None: no bound), holds (None: no bound) and command.  BENCH_JSON=FILE writes one JSON object a line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FIELDS = ("id", "what", "value", "unit", "bound", "holds", "command")


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("id", "what", "value", "unit", "bound", "holds")
    for row in rows:
        holds = {True: "yes", False: "NO", None: ""}[row["holds"]]
        bound = "" if row["bound"] is None else f"{row['bound']:g}"
        table.add_row(row["id"], row["what"], f"{row['value']:.4g}", row["unit"], bound, holds)
    Console(width=140).print(table)


def main(wanted: list[str]) -> int:
    unknown = [w for w in wanted if f"bench_{w}" not in names()]
    if unknown:
        known = ", ".join(n.removeprefix("bench_") for n in names())
        print(f"no benchmark {', '.join(unknown)}; there are {known}", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    for name in [f"bench_{w}" for w in wanted] or names():
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"tests.bench.{name}").run()
    for row in rows:
        if set(row) != set(FIELDS):
            raise ValueError(
                f"benchmark row {row.get('id')}: fields {sorted(row)}, {sorted(FIELDS)} are needed"
            )
    show(rows)
    if target := os.environ.get("BENCH_JSON"):
        Path(target).write_text("".join(json.dumps({f: row[f] for f in FIELDS}) + "\n" for row in rows))
    return int(any(row["holds"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
