"""The page of results: one section a benchmark, with command, machine and date.

python -m tests.bench --write docs/benchmarks.md            every benchmark, the whole page
python -m tests.bench log sql --write docs/benchmarks.md    these sections; the others stay as they are
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("pyarrow", "deltalake", "duckdb", "numpy", "torch", "kafka-python", "ray")
INTRODUCTION = """\
# Benchmarks

Written by a command, one section a benchmark; nothing here is typed by hand:

    .venv/bin/python -m tests.bench --write docs/benchmarks.md
    .venv/bin/python -m tests.bench log --write docs/benchmarks.md

`make bench` prints the same without writing, `make bench BENCH=log` one of them. A row with a bound says
whether it holds; the command ends with status 1 where one does not.

How to read the numbers:

- Run them with the machine to yourself: whatever else runs takes its share of the cores and of the disk.
  What differs between two runs is noise; of percentiles the worst differ most. A bound that holds by little
  is to be measured again.
- Every benchmark makes its own folder, log and broker, and removes them. The disk is the one of the
  temporary folder (`TMPDIR`); latencies of appends are mostly its fsync.
- Rates "on one core" are of one process with one thread that works; client and broker of Kafka share the
  machine, so that there it is the sum of both that is measured.
- Known limits: one machine and its loopback, so no network between the processes; token ids made up from a
  fixed seed where a row does not say that they are of real text.
"""


def machine() -> str:
    """One line: cores, processor, memory, software."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.M)
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", _read("/proc/meminfo"), re.M)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = [
        f"{cores} cores, {found[1].strip() if found else platform.machine()}",
        f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "",
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
        *(f"{name} {version}" for name in PACKAGES if (version := _version(name))),
    ]
    return ", ".join(w for w in words if w)


def _read(path: str) -> str:
    return Path(path).read_text() if os.path.exists(path) else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**NO**"
    if isinstance(value, int | float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return "" if value is None else str(value).replace("|", "\\|")


def section(name: str, rows: Sequence[Mapping[str, Any]], measured: str) -> str:
    """A benchmark's section; `measured` says when and on what."""
    commands = dict.fromkeys(str(row["command"]) for row in rows)
    lines = [f"## {name}", "", *(f"    {command}" for command in commands), "", measured, ""]
    lines += ["| id | what | value | unit | bound | holds |", "|---|---|--:|---|--:|---|"]
    for row in rows:
        cells = (f"`{row['id']}`", *(_cell(row[f]) for f in ("what", "value", "unit", "bound", "holds")))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def sections(page: str) -> dict[str, str]:
    """The sections of a page by their names."""
    parts = re.split(r"^(?=## )", page, flags=re.M)[1:]
    return {part.splitlines()[0].removeprefix("## "): part.strip() + "\n" for part in parts}


def write(path: Path, results: Mapping[str, Sequence[Mapping[str, Any]]], known: Sequence[str]) -> None:
    """Put results (benchmark -> rows) into the page; sections that are not `known` any more are dropped."""
    kept = sections(path.read_text()) if path.exists() else {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    measured = f"Measured {today}: {machine()}."
    kept |= {name: section(name, rows, measured) for name, rows in results.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([INTRODUCTION, *(kept[name] for name in known if name in kept)]))
