"""Who samples: the engine client, and the embedded engine (its own process, SGLang's contract)."""

from __future__ import annotations

import os

ENGINE_KEY = "HEADRACE_ENGINE_KEY"
"""In the environment, not an argument: every process of a machine can read the arguments of the others."""


def engine_key() -> str | None:
    """The API key of the run's engines, where they ask for one; without the new line that files end with."""
    return os.environ.get(ENGINE_KEY, "").strip() or None
