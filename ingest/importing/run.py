"""An import from its first byte to its last commit."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from ingest.importing.coding import (
    OPEN_BYTES,
    Coder,
    Watch,
    check_files,
    give_scores,
    read_calls,
    read_scores,
)
from ingest.importing.refused import RefusedRows
from ingest.importing.rows import Refused
from ingest.importing.spool import Spool
from ingest.importing.writing import Importer, Written, target
from lake import failure


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import read and wrote."""

    lake: str
    rows: int  # that are calls
    rows_refused: int
    raw_tokens: int  # of inputs and outputs
    parked: int  # matchers that were dropped to save memory
    written: Written
    first_refused: list[Refused]


def import_calls(
    files: Sequence[str],
    into: str,
    scores: Sequence[str] = (),
    *,
    open_bytes: int = OPEN_BYTES,
    watch: Watch = lambda _stage, _done, _all: None,
) -> Imported:
    """Import raw calls (see `ingest.importing.rows`) into a lake; the same files again change nothing.

    The events' time is that of the newest file, so that an import is the same whenever it is done.
    Raises CannotImport (files that are none, a lake that follows a log), Fenced where another import
    writes the same lake, SpoolFull, and what a store raises; begun again it goes on.
    """
    check_files([*files, *scores])
    store = target(into)
    time_us = max(os.stat(path).st_mtime_ns for path in [*files, *scores]) // 1000
    refused = RefusedRows(store, time_us)
    with Spool() as spool:
        coder = Coder(spool, time_us, open_bytes)
        for row in read_calls(files, watch):
            wrong = row if isinstance(row, Refused) else coder.add(row)
            if wrong is not None:
                refused.add(wrong)
        coder.close()
        give_scores(coder, read_scores(scores, refused.add), refused.add)
        refused.flush()
        failure.reach("import.after-reading")
        groups = list(coder.groups.values())
        tokens = sum(execution.tokens for group in groups for execution in group.executions)
        written = Importer(store, spool, time_us).write(groups, lambda done: watch("writing", done, tokens))
    return Imported(
        lake=store.root,
        rows=coder.rows,
        rows_refused=refused.count,
        raw_tokens=coder.raw_tokens,
        parked=coder.parked,
        written=written,
        first_refused=refused.first,
    )
