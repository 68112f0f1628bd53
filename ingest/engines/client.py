"""The client of an engine that speaks SGLang's native contract: SGLang itself, or the embedded engine."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ingest.engines.answer import (
    EngineError,
    EngineRefused,
    EngineUnavailable,
    Generation,
    Routing,
    read_answer,
)
from ingest.engines.figures import (
    Load,
    Metrics,
    ModelInfo,
    ServerInfo,
    decoded,
    read_loads,
    read_metrics,
)
from ingest.engines.model import Experts, WeightsFault, check_weights, model_facts
from ingest.engines.request import generate_body
from ingest.engines.transport import GENERATE, Transport

__all__ = [
    "EngineClient",
    "EngineError",
    "EngineRefused",
    "EngineUnavailable",
    "Generation",
    "new_rid",
    "read_answer",
]

logger = logging.getLogger("headrace.engines")

PROBE_TIMEOUT_S = 5.0  # of /ready, which no step of the model holds up
READ_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 120.0  # heard between two steps; one of a very long prompt takes tens of seconds
FLUSH_WAIT_S = 5.0  # an engine at rest has forgotten its last call within a step or two
UPDATE_TIMEOUT_S = 600.0  # a model of 600 GB at 1 GB/s; SGLang first ends what runs, unless it is paused

RID_CHARS = 32

Standing = Literal["ready", "paused", "silent"]
"""What `/ready` says: takes calls; there, and takes none now (503); not there."""

_rids = random.Random()  # seeded by the system, like every process's


def new_rid() -> str:
    """A request id: 32 hexadecimal characters.  One length for all, because SGLang aborts by prefix."""
    return f"{_rids.getrandbits(128):032x}"


class _Update(msgspec.Struct):
    success: bool = False
    message: str | None = None


class EngineClient(Transport):
    """One engine.  Use it inside one event loop, with `async with` or `close`.

    - Which calls are sent again, and why, ingest.engines.transport says; `generate` never is.
    - Ids outside the vocabulary are refused before they are sent, because one of them kills SGLang, and on
      what comes back.  `vocab_size` and `experts` (the shape of a mixture of experts) are those of the
      model's config.json (ingest.engines.model).  Without them the client asks the engine once, before a
      call: the embedded engine tells, of SGLang the folder is read where it lies on this machine.  Where it
      lies elsewhere nothing can be known: that is logged, and only what no vocabulary holds is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        vocab_size: int | None = None,
        experts: Experts | None = None,
    ) -> None:
        """Raises ValueError for a key that cannot be sent."""
        super().__init__(url, api_key)
        self.vocab_size, self.experts = vocab_size, experts
        self._asked = False
        self._asking = asyncio.Lock()

    async def generate(
        self,
        input_ids: np.ndarray,
        *,
        rid: str,
        new_tokens_max: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = -1,
        stop_token_ids: Sequence[int] = (),
        timeout_s: float,
        affinity: str = "",
        routed_experts: bool = False,
        experts_start: int = 0,
        bootstrap: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Sample after `input_ids` (int32, not empty).  `affinity` is for pools: here is no choice.

        `routed_experts`: say which experts each token went to, from token `experts_start` of the prompt on
        (what is known of earlier calls need not be sent again: a row of a large model is over a kilobyte).

        `bootstrap`: where a prefill and a decode server of SGLang meet (ingest.engines.prefill_decode).

        Raises EngineRefused for ids outside the vocabulary, a prompt that does not fit, an answer that
        cannot be trusted; EngineUnavailable where the engine is not reached or takes over `timeout_s` (it
        then sees the connection close, and aborts); ValueError for an id of another length than `new_rid`'s,
        with whose abort others might end.
        """
        if len(rid) != RID_CHARS:
            raise ValueError(f"rid {rid[:64]!r} has {len(rid)} characters; {RID_CHARS} are needed: new_rid()")
        if not self._asked and (self.vocab_size is None or (routed_experts and self.experts is None)):
            await self._ask_model()
        if input_ids.dtype != np.int32 or input_ids.ndim != 1 or not input_ids.size:
            raise EngineRefused(
                f"input_ids is {input_ids.dtype}{input_ids.shape}; a filled int32 vector is needed"
            )
        bound = 2**31 if self.vocab_size is None else self.vocab_size
        if np.maximum.reduce(input_ids.view(np.uint32)) >= bound:  # one below 0 is 2**31 at least
            raise EngineRefused(
                f"input ids run from {input_ids.min()} to {input_ids.max()}; 0 to {bound - 1} is possible"
            )
        sampling: dict[str, Any] = {
            "max_new_tokens": new_tokens_max,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "skip_special_tokens": False,
        }
        if stop_token_ids:
            sampling["stop_token_ids"] = [int(i) for i in stop_token_ids]
        routing = self._routing(len(input_ids), experts_start) if routed_experts else None
        body = generate_body(rid, input_ids, sampling, routing.start if routing else None, bootstrap)
        content = await self.send("POST", GENERATE, body, timeout_s=timeout_s, again=False)
        answer = read_answer(content, vocab_size=self.vocab_size, routing=routing)
        return msgspec.structs.replace(answer, engine=self.url)

    async def _ask_model(self) -> None:
        """Learn what was not given; an engine that is away is asked at the next call."""
        async with self._asking:
            if self._asked:
                return
            try:
                await self.model_info()
            except EngineError:
                return  # the call itself will tell
            self._asked = True
            if self.vocab_size is None:
                logger.warning(
                    "%s does not tell the size of its vocabulary, and its model's folder is not here: ids "
                    "are not checked, and one outside it kills SGLang; give vocab_size",
                    self.url,
                )

    def _routing(self, prompt: int, start: int) -> Routing:
        if self.experts is None:
            raise EngineRefused(
                f"routed experts are asked of {self.url}, whose shape is not known: the model's config.json "
                "names none, or lies elsewhere; turn proxy.routed_experts off, or give the model's folder"
            )
        if not 0 <= start <= prompt:
            raise EngineRefused(f"experts_start is {start}; 0 to the prompt's {prompt} tokens is possible")
        return Routing(self.experts, prompt, start)

    async def _control(self, path: str, body: Any = None, *, again: bool = True) -> bytes:
        data = msgspec.json.encode(body or {})
        return await self.send("POST", path, data, timeout_s=CONTROL_TIMEOUT_S, again=again)

    async def _read(self, path: str) -> bytes:
        return await self.send("GET", path, timeout_s=READ_TIMEOUT_S, again=True)

    async def abort(self, rid: str) -> None:
        """The call of this id ends as `abort` with what it has; unknown ids are no error.

        An engine that the call has not reached yet does not know it either.
        """
        await self._control("/abort_request", {"rid": rid})

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Stop computing: calls in flight end (abort), wait and start anew (retract), or stand still.

        New calls wait for `resume`.  Returns when it is so.
        """
        await self._control("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on after a pause; no error where there was none."""
        await self._control("/continue_generation")

    async def update_weights(
        self, path: str, version: int, flush_cache: bool = True, *, timeout_s: float = UPDATE_TIMEOUT_S
    ) -> None:
        """Serve the weights of a folder from now on.  Raises EngineRefused where they were not taken.

        Where the folder lies here, files that are not whole, or of another shape than those served, are not
        sent: SGLang dies of them.
        While calls stand still (`in_place`), and without a pause, give `flush_cache=False`: SGLang 0.5.23
        takes the weights, cannot flush where a call runs or has ended just now, and says that it failed.
        """
        served = (await self.model_info()).model_path
        try:
            await asyncio.to_thread(check_weights, Path(path), Path(served))
        except WeightsFault as fault:
            raise EngineRefused(f"{self.url} was not told of version {version}: {fault}") from fault
        place = "/update_weights_from_disk"
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flush_cache}
        data = await self.send("POST", place, msgspec.json.encode(body), timeout_s=timeout_s, again=False)
        said = decoded(data, _Update, self.url + place)
        if not said.success:
            raise EngineRefused(f"{self.url}: version {version} was not taken: {said.message}")

    async def flush(self, wait_s: float = FLUSH_WAIT_S) -> None:
        """Drop held prefixes.  Raises EngineRefused where calls are in flight and stay so for `wait_s`.

        Of a call that was answered just now SGLang may know no end yet.
        """
        await self._control(f"/flush_cache?timeout={wait_s:g}")

    async def standing(self) -> Standing:
        """What `/ready` says, which is asked for PROBE_TIMEOUT_S.  An engine without that path is ready."""
        try:
            status, _ = await self.ask("GET", "/ready", timeout_s=PROBE_TIMEOUT_S, again=True)
        except EngineUnavailable:
            return "silent"
        return "paused" if status >= 500 else "ready"

    async def ready(self) -> bool:
        """Whether the engine takes calls now; False as well where it is not reached."""
        return await self.standing() == "ready"

    async def model_info(self) -> ModelInfo:
        """What the engine serves.  Learns the vocabulary and the experts, where nobody gave them."""
        info = decoded(await self._read("/model_info"), ModelInfo, self.url + "/model_info")
        facts = model_facts(info.model_path) if info.model_path else None
        self.vocab_size = self.vocab_size or info.vocab_size or (facts and facts.vocab_size)
        self.experts = self.experts or (facts and facts.experts)
        return info

    async def server_info(self) -> ServerInfo:
        """How it was started."""
        return decoded(await self._read("/server_info"), ServerInfo, self.url + "/server_info")

    async def loads(self) -> tuple[Load, ...]:
        """What it does now, one entry a data-parallel rank."""
        return read_loads(await self._read("/v1/loads"), self.url + "/v1/loads")

    async def metrics(self) -> Metrics:
        """Its counters.  SGLang has them with `--enable-metrics`; EngineRefused (404) without."""
        return read_metrics(await self._read("/metrics"), self.url + "/metrics")
