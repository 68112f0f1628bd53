"""What an engine says of itself, typed: its load now, its counters, what it serves.

`Load` comes of `/v1/loads`, which asks the engine's scheduler and is exact; `Metrics` of `/metrics`, which
SGLang's scheduler writes now and then (every `--decode-log-interval` steps, 40), so that its gauges of an
engine that has just become idle may still tell of work.  A router takes the first, a dashboard the second.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from ingest.engines.answer import EngineRefused, version_of

T = TypeVar("T")


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One data-parallel rank, now; None where it does not say.

    `running` is no sign of idleness on SGLang while it is paused: calls that stand still are not counted.
    """

    rank: int = msgspec.field(name="dp_rank", default=0)
    running: int = msgspec.field(name="num_running_reqs")
    waiting: int = msgspec.field(name="num_waiting_reqs")
    running_max: int | None = msgspec.field(name="max_running_requests", default=None)
    used_tokens: int | None = msgspec.field(name="num_used_tokens", default=None)
    total_tokens: int | None = msgspec.field(name="max_total_num_tokens", default=None)
    token_usage: float | None = None  # share of the places for keys and values, 0 to 1
    cache_hit_rate: float | None = None  # share of prompt tokens that were held; SGLang: of the last batch
    throughput: float | None = msgspec.field(name="gen_throughput", default=None)  # tokens a second


class _Loads(msgspec.Struct):
    loads: list[Load]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is served.  `vocab_size` and `context_length` are told by the embedded engine only."""

    model_path: str = ""
    weight_version: str | None = None
    vocab_size: int | None = None
    context_length: int | None = None
    disaggregation_mode: str | None = None  # of SGLang, now: prefill, decode; null where it does both

    @property
    def version(self) -> int | None:
        """None where nobody gave one: SGLang then says `default`."""
        return version_of(self.weight_version)


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine was started."""

    version: str = ""  # of SGLang
    max_running_requests: int | None = None
    max_total_num_tokens: int | None = None
    context_length: int | None = None
    enable_return_routed_experts: bool = False
    enable_metrics: bool = False
    disaggregation_bootstrap_port: int | None = None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and counters, all ranks together; a gauge is None where there is none of that name.

    Counters are of the calls that have ended, and begin at 0 with the engine: of two readings the
    differences count.  SGLang does not write those that are 0.
    """

    running: float | None = None
    queued: float | None = None
    paused: float | None = None
    retracted: float | None = None
    token_usage: float | None = None  # the mean of the ranks, as the next two
    cache_hit_rate: float | None = None
    throughput: float | None = None
    calls: float = 0.0
    aborted: float = 0.0  # SGLang: aborts that were asked for, one for all calls as well
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    sampled_tokens: float = 0.0


SUMS = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:num_paused_reqs": "paused",
    "sglang:num_retracted_reqs": "retracted",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:cached_tokens_total": "cached_tokens",
    "sglang:generation_tokens_total": "sampled_tokens",
    "sglang:num_requests_total": "calls",
    "sglang:num_aborted_requests_total": "aborted",
}
MEANS = {
    "sglang:token_usage": "token_usage",
    "sglang:cache_hit_rate": "cache_hit_rate",
    "sglang:gen_throughput": "throughput",
}
_NAMES = SUMS | MEANS
_STARTS = tuple(name + end for name in _NAMES for end in ("{", " "))


def decoded(body: bytes, kind: type[T], what: str) -> T:
    """Raises EngineRefused where the answer of `what` is not of this kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineRefused(f"{what}: the answer does not decode: {error}") from error


def read_loads(body: bytes, what: str) -> tuple[Load, ...]:
    """Of `/v1/loads`, one a rank.  Raises EngineRefused."""
    return tuple(decoded(body, _Loads, what).loads)


def read_metrics(body: bytes, what: str) -> Metrics:
    """Of the Prometheus text of `/metrics`.  Raises EngineRefused where that is none."""
    from prometheus_client.parser import text_string_to_metric_families

    # of some thousand lines, nearly all are buckets of histograms
    lines = [line for line in body.decode(errors="replace").splitlines() if line.startswith(_STARTS)]
    found: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if math.isfinite(sample.value):  # a share of nothing is NaN
                    found.setdefault(sample.name, []).append(sample.value)
    except ValueError as error:
        raise EngineRefused(f"{what}: the answer is no Prometheus text: {error}") from error
    values: dict[str, Any] = {
        _NAMES[name]: sum(several) / (len(several) if name in MEANS else 1)
        for name, several in found.items()
        if name in _NAMES
    }
    return Metrics(**values)
