"""A prefill and a decode server of SGLang as one engine: the second goes on from what the first computes.

    call -> prefill: keys and values of the prompt, kept there as a prefix -+ sent over (Mooncake)
         -> decode:  waits for them, samples                              <-+ -> answer

Both get the same body, which names where they meet.  Several decode servers share a prefill server, so an
execution that moves from one to another has its prefix still: nothing is computed twice.  Where one of the
two fails, the other is told to abort, and the call has failed as a whole.

Their `--disaggregation-mode` is `prefill` and `decode`; the port where they meet is the prefill server's
`--disaggregation-bootstrap-port`, which it tells.  Routed experts are not kept: each has seen a part only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.engines.answer import EngineError, EngineRefused, EngineUnavailable, Generation
from ingest.engines.client import EngineClient, Standing
from ingest.engines.figures import Load

TELL_S_MAX = 5.0  # for the abort at the one that is left over
_rooms = random.Random()


class PrefillDecode:
    """`url` is the decode server's: there a call runs.  `cached_tokens` are those of the prefill server."""

    def __init__(self, prefill: EngineClient, decode: EngineClient) -> None:
        self.prefill, self.decode, self.url = prefill, decode, decode.url
        self._place: dict[str, Any] | None = None

    async def generate(
        self, input_ids: npt.NDArray[np.int32], *, rid: str, routed_experts: bool = False, **asked: Any
    ) -> Generation:
        """As EngineClient.generate.  Raises EngineUnavailable where either fails."""
        if routed_experts:
            raise EngineRefused(
                f"{self.url}: prefill and decode servers do not tell routed experts as a whole; "
                "turn proxy.routed_experts off, or use servers that do both"
            )
        meeting = await self._meeting() | {"bootstrap_room": _rooms.getrandbits(62)}
        asked |= {"rid": rid, "bootstrap": meeting}
        halves = [
            asyncio.create_task(half.generate(input_ids, **asked)) for half in (self.prefill, self.decode)
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
            failed = next((k for k, half in enumerate(halves) if half.done() and half.exception()), None)
            if failed is not None:
                await self._tell(halves, rid)
                if failed == 0:
                    self._place = None  # it may come back elsewhere
        finally:
            for half in halves:
                half.cancel()
            found = await asyncio.gather(*halves, return_exceptions=True)
        return self._answer(found)

    def _answer(self, found: list[Generation | BaseException]) -> Generation:
        first, second = found
        for half in found:
            if isinstance(half, BaseException) and not isinstance(half, asyncio.CancelledError):
                raise half
        if isinstance(first, BaseException) or isinstance(second, BaseException):
            raise EngineUnavailable(f"{self.prefill.url} or {self.url} did not answer")
        if first.finish_reason == "abort" and second.finish_reason != "abort":
            raise EngineUnavailable(f"{self.prefill.url} ended a prompt that {self.url} went on from")
        return msgspec.structs.replace(second, cached_tokens=first.cached_tokens)

    async def _tell(self, halves: list[asyncio.Task[Generation]], rid: str) -> None:
        """Abort at the one that goes on, which may wait for the other and not look at its connection."""
        left = [c for c, half in zip((self.prefill, self.decode), halves, strict=True) if not half.done()]
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(TELL_S_MAX):
                for client in left:
                    await client.abort(rid)

    async def _meeting(self) -> dict[str, Any]:
        """Where the two meet.  Raises EngineUnavailable, EngineRefused for servers of other modes."""
        if self._place is None:
            for client, mode in ((self.prefill, "prefill"), (self.decode, "decode")):
                said = await client.server_info()
                if said.disaggregation_mode != mode:
                    raise EngineRefused(
                        f"{client.url} has the disaggregation mode {said.disaggregation_mode or 'null'}, "
                        f"{mode} is needed; start SGLang with --disaggregation-mode {mode}"
                    )
                if mode == "prefill":
                    port = said.disaggregation_bootstrap_port
            host = urlsplit(self.prefill.url).hostname
            self._place = {"bootstrap_host": host, "bootstrap_port": port}
        return self._place

    async def abort(self, rid: str) -> None:
        """At both; raises EngineUnavailable where the decode server cannot be told."""
        await asyncio.gather(self.decode.abort(rid), self._tell_prefill(rid))

    async def _tell_prefill(self, rid: str) -> None:
        with contextlib.suppress(EngineError):
            await self.prefill.abort(rid)

    async def standing(self) -> Standing:
        """Ready where both are; silent where either is."""
        both = await asyncio.gather(self.prefill.standing(), self.decode.standing())
        return next((s for s in ("silent", "paused") if s in both), "ready")

    async def loads(self) -> Sequence[Load]:
        """Of the decode server: there a call is the longest."""
        return await self.decode.loads()

    async def close(self) -> None:
        await self.prefill.close()
        await self.decode.close()
