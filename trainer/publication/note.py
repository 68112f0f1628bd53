"""RUN/publishing.json: what a trainer that is killed in the middle of a publication leaves to the next.

paused   engines that we paused and have not continued: whoever finds them paused may continue them
torn     engines to which something was sent, and not all of it: they must be loaded whole
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from pathlib import Path

from lake.durable import sync


class Note:
    """Two sets of URLs, on the disk before a change returns.  Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        kept = json.loads(path.read_text()) if path.is_file() else {}
        self.paused: set[str] = set(kept.get("paused", ()))
        self.torn: set[str] = set(kept.get("torn", ()))

    def pausing(self, urls: Collection[str]) -> None:
        self._change(paused=self.paused.union(urls))

    def sending(self, urls: Collection[str]) -> None:
        self._change(torn=self.torn.union(urls))

    def whole(self, urls: Collection[str]) -> None:
        """They hold one version, all of it."""
        self._change(torn=self.torn.difference(urls))

    def continued(self, urls: Collection[str]) -> None:
        self._change(paused=self.paused.difference(urls))

    def _change(self, *, paused: set[str] | None = None, torn: set[str] | None = None) -> None:
        with self._lock:
            self.paused = self.paused if paused is None else paused
            self.torn = self.torn if torn is None else torn
            if not (self.paused or self.torn):
                self._path.unlink(missing_ok=True)
                return
            half = self._path.with_suffix(".part")
            half.write_text(json.dumps({"paused": sorted(self.paused), "torn": sorted(self.torn)}))
            sync(half)
            half.replace(self._path)
