"""A run's proxy is asked about its engines, and told to change them (ingest.proxy.control)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from ingest.identity import control_key, read_secret
from lake.layout import Run
from lake.processes import ask
from lake.run_processes import address_of


class ProxyAway(RuntimeError):
    """The run has no proxy, or it does not answer: where, and what to do."""


class NotSteered(ValueError):
    """The proxy answers, and does not do it: what it says."""


def steer(run: Run, what: str, body: dict[str, Any], *, proxy: str | None, within_s: float) -> dict[str, Any]:
    """What the proxy answers.  `what` is `drain`, `undrain`, `add` or `remove`; "" asks what there is.

    Raises ProxyAway, NotSteered.
    """
    run.config()  # or it is no run
    base = (proxy or address_of(run, "proxy") or "").rstrip("/")
    if not base:
        raise ProxyAway(
            f"{run.path} has no proxy: `headrace proxy {run.path}` starts one, or give --proxy URL"
        )
    url = f"{base}/engines/{what}".rstrip("/")
    data = json.dumps(body).encode() if what else None
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {control_key(read_secret(run))}"})
    try:
        told: dict[str, Any] = json.loads(ask(request, within_s))
    except urllib.error.HTTPError as error:
        said = error.read()[:2000].decode(errors="replace")
        try:
            said = json.loads(said)["error"]
        except (ValueError, KeyError, TypeError):
            said = f"{error.code}: {said}"
        raise NotSteered(f"{url}: {said}") from error
    except (urllib.error.URLError, OSError) as error:
        raise ProxyAway(
            f"{url}: {getattr(error, 'reason', error)}; see that the run's proxy is up, or give --proxy URL"
        ) from error
    return told
