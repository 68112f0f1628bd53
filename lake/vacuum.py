"""Deleting files that no version within the retention names, and commits that a checkpoint replaces.

What is deleted was listed before the newest version was looked at, and is named by none of its files: a
file that a writer commits meanwhile is either not listed yet or named by then.
"""

from __future__ import annotations

import contextlib
import json
import math

from lake.table import Table

RETAIN_H = 168.0
LEFTOVER_H = 24.0
"""Files that no commit ever named are a writer's own for so long: it may be about to commit them."""


def listed(table: Table) -> dict[str, int]:
    """The Parquet files that lie in the table's folder, named by a commit or not -> bytes."""
    table.fs.invalidate_cache()
    found = table.fs.ls(table.root, detail=True)
    names = {f["name"].rstrip("/").rsplit("/", 1)[-1]: f["size"] for f in found if f["type"] == "file"}
    return {name: size for name, size in names.items() if name.endswith(".parquet")}


def expired(table: Table, retain_h: float = RETAIN_H) -> dict[str, int]:
    """Files that may be deleted -> their bytes.

    Those that were removed from the table longer than `retain_h` hours ago; and those that were never in
    it and are older than that and than LEFTOVER_H, such as a crashed writer leaves.
    """
    there = listed(table)
    table.refresh()
    named = {entry.name for entry in table.entries()}
    hours = math.ceil(retain_h), math.ceil(max(retain_h, LEFTOVER_H))
    found = {
        path.rsplit("/", 1)[-1]
        for age_h, full in zip(hours, (False, True), strict=True)
        for path in table.delta.vacuum(age_h, dry_run=True, enforce_retention_duration=False, full=full)
    }
    return {name: there[name] for name in sorted(found - named) if name in there}


def delete(table: Table, name: str) -> None:
    """Delete a file of the table's folder that no commit names; one that is gone is no error."""
    with contextlib.suppress(FileNotFoundError):
        table.fs.rm_file(f"{table.root}/{name}")


def checkpoint(table: Table) -> None:
    """Write a checkpoint where commits came since the last, and remove commits older than are kept."""
    last = f"{table.root}/_delta_log/_last_checkpoint"
    if not table.fs.exists(last) or json.loads(table.fs.cat_file(last))["version"] < table.version:
        table.delta.create_checkpoint()
        table.delta.cleanup_metadata()
