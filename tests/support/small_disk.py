"""Appends to a table on a disk that fills, over and over: `python -m tests.support.small_disk FOLDER`.

FOLDER lies on a small tmpfs.  Whenever an append says StoreFull, the table is compared with what was
committed, some space is freed (from one page on, so that now the file and now the commit does not
fit), and the same append is called again.  Prints "whole" when every row is there once.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pyarrow as pa

from lake.digest import table_digest
from lake.store import Store, StoreFull
from tests.support.store_appender import ROWS, SCHEMA, batch

PAGE = 4096
APPENDS_AFTER = 6  # that had to be called again


def free(ballast: Path, pages: int) -> None:
    """Give back this many pages of the space that the ballast takes."""
    with ballast.open("r+b") as f:
        f.truncate(max(0, ballast.stat().st_size - pages * PAGE))


def check(root: str, commits: int) -> None:
    """A fresh handle sees exactly what was committed, and no file lies there that no commit names."""
    table = Store(root).table("events/t", SCHEMA)
    assert (table.offset("a") or 0) == commits * ROWS
    parts = [batch("a", n * ROWS) for n in range(commits)]
    order = [("log_offset", "ascending")]
    wanted = pa.concat_tables([SCHEMA.empty_table(), *parts])
    assert table_digest(table.read().sort_by(order)) == table_digest(wanted)
    assert len(list(Path(root, "events", "t").glob("*.parquet"))) == len(table.files())


def main() -> None:
    folder = Path(sys.argv[1])
    root, ballast = str(folder / "lake"), folder / "ballast"
    table = Store(root).table("events/t", SCHEMA)
    commits = refused = again = 0
    with ballast.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(PAGE))
    pages = 1
    while again < APPENDS_AFTER:
        try:
            stood = commits * ROWS or None
            table.append(batch("a", commits * ROWS), {"a": (commits + 1) * ROWS}, {"a": stood})
        except StoreFull:
            refused += 1
            check(root, commits)
            free(ballast, 1)
            pages += 1
            continue
        commits += 1
        check(root, commits)
        again += pages > 1
        pages = 1
    assert refused >= APPENDS_AFTER
    print(f"whole: {commits} commits, {refused} refused")


if __name__ == "__main__":
    main()
