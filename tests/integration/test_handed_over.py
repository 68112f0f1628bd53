"""What a hand-over does to caches, on two real engines: computed again there, still held on the way back."""

from __future__ import annotations

from ingest.engines.client import EngineClient
from tests.support.engines import embedded_engine
from tests.support.handed_over import there_and_back
from tests.support.random_model import make_tiny_model

OPTIONS = ("--context-tokens", "512", "--concurrent-calls", "4")


async def test_a_prefix_is_computed_again_elsewhere_and_held_where_it_was(tmp_path) -> None:
    model = make_tiny_model(tmp_path / "model")
    with embedded_engine(model, *OPTIONS) as one, embedded_engine(model, *OPTIONS) as two:
        servers = [EngineClient(engine.url) for engine in (one, two)]
        asked = await there_and_back(servers, vocab=388, start=100, more=20)
    assert [call.engine for call in asked] == [one.url, one.url, two.url, two.url, one.url]
    first, same, moved, there, back = asked
    assert (first.cached, moved.cached) == (0, 0)
    assert same.cached >= first.prompt
    assert there.cached >= moved.prompt
    assert same.prompt <= back.cached < moved.prompt  # what it computed before its execution left
