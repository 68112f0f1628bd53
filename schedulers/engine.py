"""The engine of a run: started again where it dies, and never left on weights older than the published ones.

A new start serves the last version that the log names.  The trainer may be publishing the next one meanwhile,
and the engine that said yes to it may have died before the log knew:

    trainer   update to v+1: yes                     log: v+1 published
    engine    serves v+1, dies  - started on v -     serves v

So whenever the log names another version, and after each new start, the engine is asked which one it serves.
An older one than the log's is such an engine, since what the log names was served; it is started once more
(an update by us might overtake the trainer's next one).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from lake import run_processes
from lake.config import Config
from lake.layout import Run
from lake.processes import Revived, ask

ASK_S = 1.0
"""How long the engine is waited for, and how often it is asked, until it says its version."""


class RunEngine:
    """One engine at one port for as long as the run lives."""

    def __init__(self, run: Run, config: Config, version: int, port: int) -> None:
        """Raises ConfigError where there is no such engine."""
        self._run, self._config, self._port = run, config, port
        self.process = run_processes.engine(run, config, version, port)
        self._revived = Revived(self.process)
        self._version = self._checked = version
        self._ask_at = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def look(self, published: int, say: Callable[[str], None]) -> bool:
        """Look after it once; whether it was started again just now.

        `published` is the last version that the log names (-1: none).  Raises ProcessDied where starting it
        again does not help.
        """
        version = max(0, published)
        if version != self._version:
            again = run_processes.engine(self._run, self._config, version, self._port)
            self._version, self.process.arguments = version, again.arguments
        if self._revived.look(say):
            self._checked = -1
            return True
        if self._checked < version and self._revived.ready:
            self._check(version, say)
        return False

    def _check(self, version: int, say: Callable[[str], None]) -> None:
        """Replace an engine that serves an older version; one that does not answer is asked again."""
        now = time.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_S
        try:
            served = int(json.loads(ask(f"{self.url}/model_info", ASK_S))["weight_version"])
        except (OSError, ValueError, KeyError):
            return
        if served < version:
            self._revived.replace(f"serves version {served}, published is {version}", say)
        else:
            self._checked = version
