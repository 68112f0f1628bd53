"""Every benchmark of this folder: `make bench`, or `python -m tests.bench [NAME ...]` for some of them.

A benchmark is a module `bench_*.py` with `run() -> list[dict]`; each row has id, what, value, unit,
bound (None: no bound), holds (None: no bound) and command; a value is None where `what` says why not.
BENCH_JSON=FILE writes one JSON object a line, `--write docs/benchmarks.md` the page of results
(tests.bench.page).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import page

FIELDS = ("id", "what", "value", "unit", "bound", "holds", "command")


def names() -> list[str]:
    """What there is, without `bench_`."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("id", "what", "value", "unit", "bound", "holds")
    for row in rows:
        holds = {True: "yes", False: "NO", None: ""}[row["holds"]]
        bound = "" if row["bound"] is None else f"{row['bound']:g}"
        value = "" if row["value"] is None else f"{row['value']:.4g}"
        table.add_row(row["id"], row["what"], value, row["unit"], bound, holds)
    Console(width=140).print(table)


def measure(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark.  Raises ValueError for a row that lacks a field, and for an id twice."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = importlib.import_module(f"tests.bench.bench_{name}").run()
    for row in rows:
        if set(row) != set(FIELDS):
            raise ValueError(
                f"benchmark row {row.get('id')}: fields {sorted(row)}, {sorted(FIELDS)} are needed"
            )
    twice = [i for i, n in Counter(row["id"] for row in rows).items() if n > 1]
    if twice:
        raise ValueError(f"benchmark {name}: several rows have the id {', '.join(twice)}")
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())} (default: all)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the results into this page")
    asked = parser.parse_args(arguments)
    unknown = set(asked.names) - set(names())
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    results = {}
    for name in asked.names or names():
        results[name] = measure(name)
        if asked.write:  # after each: one that fails takes nothing with it
            page.write(asked.write, results, names())
    rows = [row for of_one in results.values() for row in of_one]
    show(rows)
    if target := os.environ.get("BENCH_JSON"):
        Path(target).write_text("".join(json.dumps({f: row[f] for f in FIELDS}) + "\n" for row in rows))
    return int(any(row["holds"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
