"""The client of an engine that speaks SGLang's native contract: SGLang itself, or the embedded engine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Literal, Self

import aiohttp
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
from ingest.engines.model import Experts
from ingest.engines.request import generate_body

__all__ = [
    "EngineClient",
    "EngineError",
    "EngineRefused",
    "EngineUnavailable",
    "Generation",
    "new_rid",
    "read_answer",
]

CONNECTIONS_MAX = 2048
CONTROL_CONNECTIONS_MAX = 16  # their own: an engine is not silent because calls fill all others
CONTROL_TIMEOUT_S = 120.0  # an update reads a whole model from disk
PROBE_TIMEOUT_S = 5.0
BUSY = (408, 429)  # of a gateway before engines: too slow, too many; later it may take the call

Standing = Literal["ready", "paused", "silent"]
"""What `/ready` says: takes calls; there, and takes none now (503); not there."""

_rids = random.Random()  # seeded by the system, like every process's


def new_rid() -> str:
    """A request id: 32 hexadecimal characters.  One length for all, because SGLang aborts by prefix."""
    return f"{_rids.getrandbits(128):032x}"


def _sentence(status: int, body: bytes) -> str:
    """The engine's own words out of an answer that is not 200."""
    try:
        data = json.loads(body)
    except ValueError:
        data = body.decode(errors="replace").strip()
    if isinstance(data, dict):
        error = data.get("error", data)
        data = error.get("message", error) if isinstance(error, dict) else error
    return f"{status}: {str(data)[:2000]}"


class EngineClient:
    """One engine.  Use it inside one event loop, with `async with` or `close`.

    - Connections are kept alive, at most CONNECTIONS_MAX for calls and CONTROL_CONNECTIONS_MAX beside them.
    - Nothing is tried twice here: the caller knows whether another try is right.
    - `vocab_size`, where known, is checked before ids are sent (an id outside it kills SGLang) and on
      what comes back; `model_info` learns it where the engine tells.
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
        self.url, self.vocab_size, self.experts = url.rstrip("/"), vocab_size, experts
        self._headers = {"Content-Type": "application/json"}
        key = (api_key or "").strip()  # what comes out of a file ends with a new line
        if not (key.isascii() and key.isprintable()):
            raise ValueError(
                f"the API key of {self.url} holds characters that no header can; give it as it is"
            )
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._sessions: dict[int, aiohttp.ClientSession] = {}  # by how many connections they hold at most

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _session(self, connections: int) -> aiohttp.ClientSession:
        if connections not in self._sessions:
            connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=30)
            self._sessions[connections] = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._sessions[connections]

    async def _send(
        self, method: str, path: str, data: bytes | None = None, *, timeout_s: float, final: bool = True
    ) -> tuple[int, bytes]:
        """Status and body of an answer.  `final`: one that is not 200 is raised as its error."""
        session = self._session(CONNECTIONS_MAX if path == "/generate" else CONTROL_CONNECTIONS_MAX)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with session.request(method, self.url + path, data=data, timeout=timeout) as answer:
                status, content = answer.status, await answer.read()
        except TimeoutError:
            raise EngineUnavailable(f"{self.url}{path}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"{self.url}{path}: {error or type(error).__name__}") from error
        if status == 200 or not final:
            return status, content
        kind = EngineUnavailable if status >= 500 or status in BUSY else EngineRefused
        raise kind(f"{self.url}{path}: {_sentence(status, content)}")

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
    ) -> Generation:
        """Sample after `input_ids` (int32, not empty).  `affinity` is for pools: here is no choice.

        `routed_experts`: say which experts each token went to, from token `experts_start` of the prompt on
        (what is known of earlier calls need not be sent again: a row of a large model is over a kilobyte).

        Raises EngineRefused for ids outside the vocabulary, a prompt that does not fit, an answer that
        cannot be trusted; EngineUnavailable where the engine is not reached or takes over `timeout_s` (it
        then sees the connection close, and aborts).
        """
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
        body = generate_body(rid, input_ids, sampling, routing.start if routing else None)
        _, content = await self._send("POST", "/generate", body, timeout_s=timeout_s)
        answer = read_answer(content, vocab_size=self.vocab_size, routing=routing)
        return msgspec.structs.replace(answer, engine=self.url)

    def _routing(self, prompt: int, start: int) -> Routing:
        if self.experts is None:
            raise EngineRefused(
                f"routed experts are asked of {self.url}, whose shape is not known: the model's config.json "
                "names none, or lies elsewhere; turn proxy.routed_experts off, or give the model's folder"
            )
        if not 0 <= start <= prompt:
            raise EngineRefused(f"experts_start is {start}; 0 to the prompt's {prompt} tokens is possible")
        return Routing(self.experts, prompt, start)

    async def _control(self, path: str, body: Any = None) -> bytes:
        data = msgspec.json.encode(body or {})
        return (await self._send("POST", path, data, timeout_s=CONTROL_TIMEOUT_S))[1]

    async def abort(self, rid: str) -> None:
        """The call of this id ends as `abort` with what it has; unknown ids are no error."""
        await self._control("/abort_request", {"rid": rid})

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Stop computing: calls in flight end (abort), wait and start anew (retract), or stand still."""
        await self._control("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        await self._control("/continue_generation", {})

    async def update_weights(self, path: str, version: int, flush_cache: bool = True) -> None:
        """Serve the weights of a folder from now on.  Raises EngineRefused where they were not taken."""
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flush_cache}
        data = json.loads(await self._control("/update_weights_from_disk", body))
        if not data.get("success"):
            raise EngineRefused(f"{self.url}: version {version} was not taken: {data.get('message')}")

    async def flush(self) -> None:
        """Drop held prefixes.  Raises EngineRefused while calls are in flight."""
        await self._control("/flush_cache")

    async def standing(self) -> Standing:
        """What `/ready` says, which is asked for PROBE_TIMEOUT_S.  An engine without that path is ready."""
        try:
            status, _ = await self._send("GET", "/ready", timeout_s=PROBE_TIMEOUT_S, final=False)
        except EngineUnavailable:
            return "silent"
        return "paused" if status >= 500 else "ready"

    async def ready(self) -> bool:
        """Whether the engine takes calls now; False as well where it is not reached."""
        return await self.standing() == "ready"

    async def model_info(self) -> dict[str, Any]:
        """What the engine serves; `weight_version` is text.  Learns the size of the vocabulary."""
        info: dict[str, Any] = json.loads((await self._send("GET", "/model_info", timeout_s=10.0))[1])
        if isinstance(info.get("vocab_size"), int):
            self.vocab_size = info["vocab_size"]
        return info

    async def loads(self) -> dict[str, Any]:
        """Load figures, one entry of `loads` a data-parallel rank."""
        loads: dict[str, Any] = json.loads((await self._send("GET", "/v1/loads", timeout_s=10.0))[1])
        return loads

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()
