"""A lake as it stood at a moment: the newest commit of each table until then.

    moment("2h", store), moment("2026-03-01T12:00Z", store)     milliseconds since 1970
    moment("events/calls@12", store)                            when that commit was made
    table_at(store, "events/calls", time_ms)                    a handle of the table as it stood

The time of a commit is what its writer's clock said, in milliseconds, written into the commit itself:
two commits of one millisecond are one moment, and of writers on several machines it is as good as
their clocks agree.  (Delta's own search by time goes by when the commit's file was last modified,
which copying a lake changes.)  How far back one can go ends where files were vacuumed or old commits
were cleaned up.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lake.store import Store, Table
from lake.table import filesystem, is_local, open_delta

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
CLOCKS_DIFFER_MS = 60_000  # how far ahead of this clock another may be, before a time is taken for wrong
FORMS = "write 15m, 2h or 3d (ago), 2026-03-01T12:00 (local) or ...T12:00Z, or events/calls@12 (a version)"


class AsOfError(ValueError):
    """A moment that cannot be read, or that the lake does not reach back to."""


def moment(text: str | datetime, store: Store, now_ms: int | None = None) -> int:
    """The moment that `text` names, in ms since 1970 UTC.

    text    `90s`, `15m`, `2h`, `3d`, `1w` ago; ISO 8601, local where it has no zone; TABLE@VERSION, the
            time of that commit, the table named by its path in the lake as `headrace lake stats` shows it
    Raises AsOfError for anything else, a time in the future, and a version that is not there.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if isinstance(text, str):
        if ago := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip()):
            return now_ms - round(float(ago[1]) * UNITS_S[ago[2]] * 1000)
        if named := re.fullmatch(r"([\w./-]+)@(\d+)", text.strip()):
            return _committed_ms(store, named[1], int(named[2]))
        try:
            text = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise AsOfError(f"as of {text!r}: no time; {FORMS}") from error
    found = round(text.timestamp() * 1000)
    if found > now_ms + CLOCKS_DIFFER_MS:
        raise AsOfError(f"as of {shown(found)}: that is in the future; {FORMS}")
    return found


def shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


class _Commits:
    """The commits of a table that are still there: versions, and the time of each."""

    def __init__(self, store: Store, name: str) -> None:
        self.name, self.uri = name, f"{store.root}/{name}"
        self.fs, self.root = filesystem(self.uri)
        self._log = f"{self.root}/_delta_log"
        self.fs.invalidate_cache(self._log)  # an object store's listing is remembered
        found = self.fs.ls(self._log, detail=False) if self.fs.isdir(self._log) else []
        matches = (re.search(r"/(\d{20})\.json$", path) for path in found)
        self.versions = sorted(int(m[1]) for m in matches if m)

    def time_ms(self, version: int) -> int:
        text = self.fs.cat_file(f"{self._log}/{version:020d}.json")
        actions: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line]
        for action in actions:
            if "commitInfo" in action:
                return int(action["commitInfo"]["timestamp"])
        raise AsOfError(f"{self.name}: version {version} does not say when it was committed")

    def newest_until(self, time_ms: int) -> int | None:
        """The newest version committed until then; None where there is none.  Reads log2(versions) files."""
        low, high = 0, len(self.versions)
        while low < high:
            middle = (low + high) // 2
            if self.time_ms(self.versions[middle]) <= time_ms:
                low = middle + 1
            else:
                high = middle
        return self.versions[low - 1] if low else None


def _committed_ms(store: Store, name: str, version: int) -> int:
    commits = _Commits(store, name)
    if version not in commits.versions:
        there = f"{commits.versions[0]} to {commits.versions[-1]}" if commits.versions else "none"
        raise AsOfError(
            f"{name}@{version}: versions of {name} that are still there: {there}; `headrace lake stats` "
            "names the tables and their newest version"
        )
    return commits.time_ms(version)


def table_at(store: Store, name: str, time_ms: int) -> Table | None:
    """The table as it stood then; None where it did not exist yet.

    Raises AsOfError where its commits of that time were cleaned up, or its files were vacuumed.
    """
    commits = _Commits(store, name)
    version = commits.newest_until(time_ms)
    if version is None:
        if commits.versions and commits.versions[0] > 0:
            first = commits.versions[0]
            raise AsOfError(
                f"{name} as of {shown(time_ms)}: its commits of that time were cleaned up; the oldest that "
                f"is there, version {first}, is of {shown(commits.time_ms(first))}"
            )
        return None
    delta = open_delta(commits.uri, local=is_local(commits.fs))
    delta.load_as_version(version)
    table = Table(commits.uri, pa.schema(delta.schema().to_arrow()), delta)
    commits.fs.invalidate_cache(commits.root)
    there = {path.rsplit("/", 1)[-1] for path in commits.fs.ls(commits.root, detail=False)}
    gone = [path for path in table.files() if path.rsplit("/", 1)[-1] not in there]
    if gone:
        raise AsOfError(
            f"{name} as of {shown(time_ms)} (version {version}): {len(gone)} of its {len(table.files())} "
            "files were vacuumed since, their rows lie in newer ones; ask for a later time"
        )
    return table
