"""New weights to the engines: a versioned folder, then each engine told to load it.

    RUN/weights/v000003   written whole or not at all
    POST ENGINE/update_weights_from_disk {"model_path", "weight_version", "flush_cache"}

Publishing a version twice changes nothing.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from lake import failure
from lake.events import PolicyPublished
from lake.log import Log, now_us
from lake.processes import ask

UPDATE_S_MAX = 120.0
"""One update: an engine reads the weights from disk between two decoding steps."""

TRIES_S_MAX = 60.0
"""An engine that is away comes back within this, or the run ends by name."""


class PublishError(RuntimeError):
    """An engine did not take the weights: which, and what it said."""


def _post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        return 200, ask(request, UPDATE_S_MAX)[:65536].decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read(65536).decode(errors="replace")


def update_engine(url: str, folder: Path, version: int) -> None:
    """Have an engine serve `folder` as `version`.  Raises PublishError (it then serves the old ones)."""
    body = {"model_path": str(folder.absolute()), "weight_version": str(version), "flush_cache": True}
    until = time.monotonic() + TRIES_S_MAX
    while True:
        try:
            status, said = _post(f"{url}/update_weights_from_disk", body)
        except OSError as error:
            if time.monotonic() > until:
                raise PublishError(f"engine {url} is away for {TRIES_S_MAX:g} s: {error}") from error
            time.sleep(0.5)
            continue
        if status != 200:
            raise PublishError(f"engine {url} refused version {version} of {folder}: {status} {said[:500]}")
        return


def publish(log: Log, engine: str, folder: Path, *, version: int, boundary: int, digest: str) -> None:
    """Tell the engine, then the log: a version that the log names is being served."""
    update_engine(engine, folder, version)
    failure.reach("trainer.during-publication")
    log.append(
        [
            PolicyPublished(
                time_us=now_us(),
                policy_version=version,
                boundary=boundary,
                weights=folder.name,
                digest=digest,
            )
        ]
    )
