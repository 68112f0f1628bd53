"""One module a client: how it starts, what it is told, and what it makes of it."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.harnesses.frame import Client, fly
from tests.harnesses.install import PACKAGES
from tests.harnesses.observing import Seen, observe
from tests.harnesses.scenario import SLOW_S

TEN_MINUTES = "ten-minutes"
"""The runs that are made only where HEADRACE_SLOW_ENGINE_S says how many seconds the engine is silent."""


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


NAMES = tuple(name for name in PACKAGES if find_spec(_module(name)))


def load(name: str) -> Client:
    """The client of a name in `NAMES`."""
    client: Client = import_module(_module(name)).CLIENT
    return client


async def conform(client: Client, folder: Path) -> dict[str, Seen]:
    """All runs of a client, side by side, observed.  Raises NotInstalled."""
    flights = [name for name in client.flights if name != TEN_MINUTES or SLOW_S]
    return await asyncio.to_thread(observe, await fly(client, flights, folder))
