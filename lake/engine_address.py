"""Where an engine is, what it takes at once, and who computes its prompts: what is said as `--engine`.

http://127.0.0.1:30000                                    a server
http://127.0.0.1:30000#capacity=144                       144 calls at once, no more
http://127.0.0.1:30001#prefill=http://127.0.0.1:30000     a decode server of SGLang; the other computes its
                                                          prompts and sends their KV over
"""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urldefrag, urlsplit

SAYS = ("capacity", "prefill")

ENGINE_KEY = "HEADRACE_ENGINE_KEY"
"""In the environment, not an argument: every process of a machine can read the arguments of the others."""


def engine_key() -> str | None:
    """The API key of the run's engines, where they ask for one; without the new line that files end with."""
    return os.environ.get(ENGINE_KEY, "").strip() or None


class BadAddress(ValueError):
    """An address that cannot be: what stands there, what may."""


class EngineAddress(NamedTuple):
    """`capacity` None: what the engine says of itself.  `prefill` "": it computes its prompts itself."""

    url: str
    capacity: int | None = None
    prefill: str = ""

    @property
    def servers(self) -> tuple[str, ...]:
        """Every server that holds weights."""
        return (self.prefill, self.url) if self.prefill else (self.url,)

    def __str__(self) -> str:
        said = [f"capacity={self.capacity}"] if self.capacity else []
        said += [f"prefill={self.prefill}"] if self.prefill else []
        return "#".join([self.url, "&".join(said)] if said else [self.url])


def _url(text: str, whole: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
        raise BadAddress(f"engine {whole}: {text!r} is no URL such as http://127.0.0.1:30000")
    return text.rstrip("/")


def parse_engine(text: str) -> EngineAddress:
    """An address out of its words.  Raises BadAddress."""
    url, said = urldefrag(text.strip())
    found: dict[str, str] = {}
    for part in filter(None, said.split("&")):
        name, _, value = part.partition("=")
        if name not in SAYS or name in found or not value:
            raise BadAddress(
                f"engine {text}: {part!r} after #; capacity=N and prefill=URL are known, each once"
            )
        found[name] = value
    capacity = found.get("capacity")
    if capacity is not None and not (capacity.isascii() and capacity.isdigit() and int(capacity) >= 1):
        raise BadAddress(f"engine {text}: capacity is {capacity}, a whole number of calls from 1 is needed")
    prefill = found.get("prefill", "")
    address = EngineAddress(
        _url(url, text), int(capacity) if capacity else None, _url(prefill, text) if prefill else ""
    )
    if address.prefill == address.url:
        raise BadAddress(f"engine {text}: one server cannot prefill and decode; name the prefill server")
    return address
