"""`/metrics` under SGLang's names: gauges of now, and counters of the calls that have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ingest.engines.embedded.batch import Call

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
GAUGES = {
    "num_running_reqs": "calls that run",
    "num_queue_reqs": "calls that wait",
    "num_paused_reqs": "calls that stand still, since the engine is paused",
    "num_retracted_reqs": "waiting calls that ran before",
    "token_usage": "share of the places for keys and values, 0 to 1",
    "cache_hit_rate": "share of prompt tokens that were held, since the start",
    "gen_throughput": "sampled tokens a second, since the load was asked for the last time",
}
COUNTERS = {
    "num_requests": "calls that ended",
    "num_aborted_requests": "of them, as abort",
    "prompt_tokens": "their prompts' tokens",
    "cached_tokens": "of them, those that were held",
    "generation_tokens": "their sampled tokens",
}


class Ended:
    """The counters.  A call is counted when it ends, as SGLang does."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    def count(self, call: Call) -> None:
        self._counts["num_requests"] += 1
        self._counts["num_aborted_requests"] += call.finish == "abort"
        self._counts["prompt_tokens"] += len(call.prompt)
        self._counts["cached_tokens"] += call.cached or 0
        self._counts["generation_tokens"] += len(call.output_ids)

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """The exposition.  `gauges` has a value for each name of GAUGES."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(gauges, self._counts))
        return generate_latest(registry)


class _Once:
    def __init__(self, gauges: Mapping[str, float], counts: Mapping[str, Any]) -> None:
        self._gauges, self._counts = gauges, counts

    def collect(self) -> Iterator[Metric]:
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(f"sglang:{name}", what, self._gauges[name])
        for name, what in COUNTERS.items():
            yield CounterMetricFamily(f"sglang:{name}", what, self._counts[name])
