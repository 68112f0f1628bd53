"""A prefill and a decode server of SGLang as one engine: the second goes on from what the first computes.

    call -> prefill: keys and values of the prompt, kept there as a prefix -+ sent over (Mooncake)
         -> decode:  waits for them, samples                              <-+ -> answer

Both get the same body, which names where they meet.  Several decode servers share a prefill server, so an
execution that moves from one to another finds its prompts there still; only what was sampled since is
computed again, moved or not.  Where one of the two fails, the other is told to abort, and the call has
failed as a whole; a call that has its keys and values outlives the prefill server.

Their `--disaggregation-mode` is `prefill` and `decode` (`/model_info` tells that of now, `/server_info` that
of the start: `/pd_role_switch` changes it, and drops what was held).  They meet at the prefill server's
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
from ingest.engines.parts import nothing

TELL_S_MAX = 5.0  # for the abort at the one that is left over
_rooms = random.Random()


class PrefillDecode:
    """`url` is the decode server's: there a call runs.  `cached_tokens` are those of the prefill server."""

    def __init__(self, prefill: EngineClient, decode: EngineClient) -> None:
        self.prefill, self.decode, self.url = prefill, decode, decode.url
        self._place: dict[str, Any] | None = None
        self._aborted: dict[str, bool] = {}  # of those that run

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
        self._aborted[rid] = False
        halves = [
            asyncio.create_task(half.generate(input_ids, **asked)) for half in (self.prefill, self.decode)
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
            failed = next((e for half in halves if half.done() and (e := half.exception())), None)
            if failed:
                self._place = None  # it may come back elsewhere
                await self._tell(halves, rid)
        finally:
            aborted = self._aborted.pop(rid)
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
        if failed is None:
            return self._answer(halves[0].result(), halves[1].result())
        if aborted and isinstance(failed, EngineUnavailable):
            return nothing("abort")
        raise failed

    def _answer(self, first: Generation, second: Generation) -> Generation:
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
                said = (await client.model_info()).disaggregation_mode
                if said != mode:
                    raise EngineRefused(
                        f"{client.url} has the disaggregation mode {said or 'null'}, {mode} is needed; start "
                        f"SGLang with --disaggregation-mode {mode}, or switch its role (/pd_role_switch)"
                    )
            self._place = {
                "bootstrap_host": urlsplit(self.prefill.url).hostname,
                "bootstrap_port": (await self.prefill.server_info()).disaggregation_bootstrap_port,
            }
        return self._place

    async def abort(self, rid: str) -> None:
        """At both; raises EngineUnavailable where the decode server cannot be told.

        One that waits for the other's keys and values answers 500 then: there is nothing yet.
        """
        if rid in self._aborted:
            self._aborted[rid] = True
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
