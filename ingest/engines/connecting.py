"""The client of an engine, by its address."""

from __future__ import annotations

from ingest.engines.client import EngineClient
from ingest.engines.model import Experts
from ingest.engines.pool import Server
from ingest.engines.prefill_decode import PrefillDecode
from lake.engine_address import EngineAddress


def connect(
    address: EngineAddress,
    *,
    api_key: str | None = None,
    vocab_size: int | None = None,
    experts: Experts | None = None,
) -> Server:
    """One server, or two that are one.  Raises ValueError for a key that cannot be sent."""

    def client(url: str) -> EngineClient:
        return EngineClient(url, api_key=api_key, vocab_size=vocab_size, experts=experts)

    if address.prefill:
        return PrefillDecode(client(address.prefill), client(address.url))
    return client(address.url)
