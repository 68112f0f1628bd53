"""What the table of a rollout knows of the proxy's numbers."""

from __future__ import annotations

import time

import pytest

from ingest.rollouts import display
from ingest.rollouts.display import Traffic
from lake.metrics import proxy_metrics, serve


def test_calls_and_tokens_are_those_of_the_proxy_and_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "METRICS_EVERY_S", 0.0)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # what is on this machine goes past it
    with proxy_metrics().call("main", time.perf_counter()):
        proxy_metrics().tokens(10, 3)
    traffic, url = Traffic(), f"http://127.0.0.1:{serve(0)}"
    seen = traffic.look(url)
    with proxy_metrics().call("sub-agent", time.perf_counter()):
        proxy_metrics().tokens(5, 2)
    assert traffic.look(url) == {"calls": seen["calls"] + 1, "in": seen["in"] + 5, "out": seen["out"] + 2}
    before = traffic.look("http://127.0.0.1:9")  # nobody there: what was known last
    monkeypatch.setattr(display, "_scrape", lambda _: {"calls": 0.0, "in": 7.0, "out": 1.0})  # a new one
    assert traffic.look(url) == {"calls": before["calls"], "in": before["in"] + 7, "out": before["out"] + 1}
