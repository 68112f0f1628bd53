"""Where things lie in a run's folder.

RUN/config.json      the resolved configuration
RUN/log.db           the SQLite log (unless the log is Kafka)
RUN/blobs/AB/SHA256  what is too large for a record of the log
RUN/secret           the key that signs the tokens of executions (mode 0600)
RUN/lake/events/T    one Delta table a topic, and dead_letters
RUN/lake/sets/S/M    derived tables: model M of the set S (its parameters in sets/S/params.json)
RUN/weights/v000003  published weights, Hugging Face form
RUN/checkpoints/     weights and optimizer after a step
RUN/replays/NAME     replays
RUN/tasks.jsonl      the tasks, one a group
RUN/workspaces/E/    what a harness that is a command line had and left (ingest.rollouts.commanded)
RUN/publishing.json  which engines the trainer paused, and has not continued (trainer.publication)
RUN/output/P.log     what the processes printed
RUN/targets-P.json   where Prometheus finds the metrics of the processes P
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lake import config as configs

if TYPE_CHECKING:
    from lake.log import Log


class NotARun(ValueError):
    """The folder holds no run."""


def lake_root(path: str | Path) -> str:
    """The lake of a run's folder, else the path or URL itself."""
    if "://" not in str(path) and (run := Run(Path(path))).config_file.is_file():
        return run.lake
    return str(path)


@dataclass(frozen=True)
class Run:
    """A run's folder and the paths in it."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def lake(self) -> str:
        """The lake's root: the setting `lake`, or a folder of the run's own."""
        return self.config().lake or str(self.path / "lake")

    def blobs(self, config: configs.Config) -> str:
        """Where the large fields of events lie: the setting `blobs`, or a folder of the run's own."""
        return config.blobs or str(self.path.absolute() / "blobs")

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def replays(self) -> Path:
        return self.path / "replays"

    @property
    def tasks_file(self) -> Path:
        return self.path / "tasks.jsonl"

    @property
    def workspaces(self) -> Path:
        return self.path / "workspaces"

    def weights(self, version: int) -> Path:
        return self.path / "weights" / f"v{version:06d}"

    def output(self, process: str) -> Path:
        return self.path / "output" / f"{process}.log"

    def config(self) -> configs.Config:
        """Raises NotARun where there is none."""
        if not self.config_file.is_file():
            raise NotARun(f"{self.path} is not a run: it has no config.json; `headrace run demo` makes one")
        return msgspec.json.decode(self.config_file.read_bytes(), type=configs.Config)

    def log_url(self, config: configs.Config) -> str:
        return config.log or f"sqlite://{(self.path / 'log.db').absolute()}?partitions={config.partitions}"

    def open_log(self, config: configs.Config | None = None) -> Log:
        """The run's log together with its blobs: every process of a run opens it so.

        Raises LogUnavailable, ValueError for settings that cannot be.
        """
        from lake.blobs import Blobs
        from lake.log import open_log

        config = config or self.config()
        return open_log(self.log_url(config), Blobs(self.blobs(config)))
