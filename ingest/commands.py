"""The commands of ingestion: `headrace ingest`, `headrace lake rebuild`, `headrace log restore`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import click

COMMANDS: tuple[click.Command, ...] = ()
