"""Rows that an import refused, in the lake's `dead_letters`: topic `import`, and the reason with its place.

They carry their own offsets in the commits (`log/import/0`), which no log has; a restored log knows nothing
of them.  A row is told by its file's name, its number and its beginning: refused again, it is there once.
"""

from __future__ import annotations

import hashlib
import os

from ingest.importing.rows import Refused
from lake import failure
from lake.log import Record
from lake.store import Store
from lake.tables import DEAD_LETTERS, app_id, to_dead_letters
from lake.wire import SCHEMA_VERSION, Headers

TOPIC = "import"
ROWS_AT_ONCE = 1000
"""Of one commit: 16 MB where each keeps the most of itself."""
SHOWN_MAX = 20


class RefusedRows:
    """Counts refused rows, keeps the first ones to be shown, writes all of them."""

    def __init__(self, store: Store, appended_us: int) -> None:
        self.count = 0
        self.first: list[Refused] = []
        self._store, self._appended_us = store, appended_us
        self._pending: list[Refused] = []
        self._known: set[str] | None = None  # the ids of those in the lake

    def add(self, refused: Refused) -> None:
        """Keep a row; durable after `flush`."""
        self.count += 1
        if len(self.first) < SHOWN_MAX:
            self.first.append(refused)
        self._pending.append(refused)
        if len(self._pending) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what is not in the lake yet."""
        if not self._pending:
            return
        table, name = self._store.table("events/dead_letters", DEAD_LETTERS), app_id(TOPIC, 0)
        before = table.offset(name)
        if self._known is None:
            rows = table.read(columns=["topic", "event_id"]).to_pylist()
            self._known = {row["event_id"] for row in rows if row["topic"] == TOPIC}
        new = {event_id: r for r in self._pending if (event_id := _event_id(r)) not in self._known}
        letters = [
            (
                _record(refused, event_id, (before or 0) + k, self._appended_us),
                f"{refused.place}: {refused.reason}",
            )
            for k, (event_id, refused) in enumerate(new.items())
        ]
        if letters:
            table.append(to_dead_letters(letters), {name: (before or 0) + len(letters)}, {name: before})
            failure.reach("import.after-dead-letters")
        self._known |= new.keys()
        self._pending = []


def _event_id(refused: Refused) -> str:
    digest = hashlib.sha256(refused.value + refused.reason.encode()).hexdigest()[:16]
    return f"{os.path.basename(refused.place.file)}:{refused.place.row}:{digest}"


def _record(refused: Refused, event_id: str, offset: int, appended_us: int) -> Record:
    headers = Headers("import.row", SCHEMA_VERSION, event_id)
    return Record(TOPIC, 0, offset, refused.place.file, headers, refused.value, appended_us)
