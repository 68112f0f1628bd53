"""HTTP to one engine: connections, the key, errors by kind, and which calls are sent again.

A call is sent again only where that cannot do harm, whatever became of the first:

call                        again  because
ready, loads, metrics, ...  yes    they only read
abort                       yes    an id that runs nowhere is no error
pause, resume, flush        yes    they name a state: paused twice is paused
update_weights              no     it may have been taken; the version in `model_info` says so, and a second
                                   reading of a large model takes minutes: for who publishes to decide
generate                    no     nobody knows what was sampled; the caller has the prompt, and asks again
                                   under a new id, here or elsewhere

It is sent again only where the connection failed: an engine that takes long has the call already, and one
that answers has had its say.  TRIES within a second help with a connection that the other side closed just
then, or a full queue of new ones.  An engine that is down takes 15 s at least to come back: whoever needs
it waits by `ready`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Self

import aiohttp

from ingest.engines.answer import EngineRefused, EngineUnavailable

CALLS_MAX = 2048
CONTROLS_MAX = 16  # connections of their own: an engine is not silent because calls fill all others
KEEP_ALIVE_S = 4.0
"""Uvicorn, of SGLang and of the embedded engine, closes what was idle for 5 s.  We are first: a call that
meets a closing connection fails, and `generate` is not sent again."""
PAUSES_S = (0.1, 0.5)
TRIES = len(PAUSES_S) + 1
BUSY = (408, 429)  # of a gateway before engines: too slow, too many; later it may take the call
GENERATE = "/generate"


def sentence(status: int, body: bytes) -> str:
    """The engine's own words out of an answer that is not 200."""
    try:
        data = json.loads(body)
    except ValueError:
        data = body.decode(errors="replace").strip()
    if isinstance(data, dict):
        error = data.get("error", data)
        data = error.get("message", error) if isinstance(error, dict) else error
    return f"{status}: {str(data)[:2000]}"


class Transport:
    """Connections to one engine, kept alive.  Use it inside one event loop, with `async with` or `close`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises ValueError for a key that cannot be sent."""
        self.url = url.rstrip("/")
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
            connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEEP_ALIVE_S)
            self._sessions[connections] = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._sessions[connections]

    async def ask(
        self, method: str, path: str, data: bytes | None = None, *, timeout_s: float, again: bool
    ) -> tuple[int, bytes]:
        """Status and body of whatever was answered.  `again`: where the connection fails, up to TRIES times.

        Raises EngineUnavailable where there is no answer within `timeout_s`, all tries together.
        """
        session = self._session(CALLS_MAX if path == GENERATE else CONTROLS_MAX)
        tries, place = TRIES if again else 1, self.url + path
        try:
            async with asyncio.timeout(timeout_s):
                for k in range(tries):
                    try:
                        # aiohttp's own bound of 5 minutes would be another one
                        async with session.request(method, place, data=data, timeout=_NO_BOUND) as answer:
                            return answer.status, await answer.read()
                    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
                        failed = error
                    if k < tries - 1:
                        await asyncio.sleep(PAUSES_S[k])
        except TimeoutError:
            raise EngineUnavailable(f"{place}: no answer within {timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{place}: {error or type(error).__name__}") from error
        tried = f", {tries} times" if again else ""
        raise EngineUnavailable(f"{place}: {failed or type(failed).__name__}{tried}") from failed

    async def send(
        self, method: str, path: str, data: bytes | None = None, *, timeout_s: float, again: bool
    ) -> bytes:
        """The body of an answer with status 200.

        Raises EngineUnavailable for a 5xx, a busy gateway, no answer; EngineRefused for any other status.
        """
        status, content = await self.ask(method, path, data, timeout_s=timeout_s, again=again)
        if status == 200:
            return content
        kind = EngineUnavailable if status >= 500 or status in BUSY else EngineRefused
        raise kind(f"{self.url}{path}: {sentence(status, content)}")

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()


_NO_BOUND = aiohttp.ClientTimeout(total=None, sock_connect=None)
