"""Routed experts on their way from the engine's answer into the blobs, before the call's event names them.

Asked for of calls that may be trained, from the first token on that no earlier call has a row of
(lake.experts): a history that comes back with every call is kept once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingest.engines.answer import Generation
from lake.events import TRAINED_ROLES
from lake.experts import keep
from lake.log import LogUnavailable
from lake.wire import BlobStore

if TYPE_CHECKING:
    from ingest.proxy.calls import Call

PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 2.0


class ExpertsKeeper:
    """What is asked of engines, and where the answer goes.  For one event loop."""

    def __init__(self, blobs: BlobStore, number: int, retry_s_max: float) -> None:
        """number: experts a layer of the model has.  Blobs that are away are tried for `retry_s_max` s."""
        self._blobs, self._number, self._retry_s_max = blobs, number, retry_s_max

    def wanted_from(self, call: Call) -> int | None:
        """The first token whose experts are asked for; None where none are.  Parts bring rows as well."""
        if call.role not in TRAINED_ROLES:
            return None
        known = next((p for p in reversed(call.parts) if p.experts is not None), None)
        if known is not None and known.experts is not None:
            return known.experts_start + len(known.experts)
        return call.execution.experts_start(call.prompt)

    async def keep(self, generation: Generation) -> str:
        """The reference of what a call brought, durable when this returns; "" where it brought none.

        Raises EventError, LogUnavailable.
        """
        rows = generation.experts
        if rows is None or not rows.size:
            return ""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._retry_s_max, PAUSE_S_MIN
        while True:
            try:
                return await asyncio.to_thread(
                    keep, self._blobs, generation.experts_start, rows, self._number
                )
            except LogUnavailable:
                if loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_S_MAX)
