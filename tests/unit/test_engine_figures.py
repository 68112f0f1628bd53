"""Loads and metrics out of what engines write; the lines are SGLang 0.5.23's own."""

from __future__ import annotations

import pytest

from ingest.engines.answer import EngineRefused
from ingest.engines.figures import Load, Metrics, ModelInfo, ServerInfo, decoded, read_loads, read_metrics

LABELS = 'engine_type="unified",model_name="/m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
TEXT = f"""
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{LABELS},dp_rank="0"}} 3.0
sglang:num_running_reqs{{{LABELS},dp_rank="1"}} 4.0
sglang:num_running_reqs_offline_batch{{{LABELS}}} 9.0
sglang:num_queue_reqs{{{LABELS}}} 2.0
sglang:num_paused_reqs{{{LABELS},pid="15899"}} 0.0
sglang:token_usage{{{LABELS},dp_rank="0"}} 0.5
sglang:token_usage{{{LABELS},dp_rank="1"}} 0.25
sglang:cache_hit_rate{{{LABELS}}} NaN
sglang:prompt_tokens_histogram_bucket{{le="1.0"}} 4.0
sglang:prompt_tokens_total{{is_streaming="false",model_name="a b {{c}}"}} 100.0
sglang:prompt_tokens_total{{is_streaming="true",model_name="a b"}} 20.0
sglang:cached_tokens_total{{cache_source="device"}} 1e3
sglang:cached_tokens_total{{cache_source="host"}} 24.0
"""


def test_ranks_are_summed_and_shares_averaged():
    m = read_metrics(TEXT.encode(), "e/metrics")
    assert (m.running, m.queued, m.paused, m.retracted) == (7, 2, 0, None)
    assert m.token_usage == 0.375
    assert m.cache_hit_rate is None  # no number yet
    assert (m.prompt_tokens, m.cached_tokens, m.sampled_tokens, m.calls) == (120, 1024, 0, 0)


def test_no_metrics_at_all():
    assert read_metrics(b"", "e") == read_metrics(b"<html>", "e") == Metrics()
    with pytest.raises(EngineRefused, match="e/metrics: the answer is no Prometheus text"):
        read_metrics(b'sglang:num_running_reqs{a="b"} many\n', "e/metrics")


def test_loads():
    body = b'{"loads": [{"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 3, "gen_throughput": 4.5}]}'
    assert read_loads(body, "e") == (Load(rank=1, running=2, waiting=3, throughput=4.5),)
    assert read_loads(b'{"loads": []}', "e") == ()
    with pytest.raises(EngineRefused, match=r"e/v1/loads: the answer does not decode: .*num_running_reqs"):
        read_loads(b'{"loads": [{}]}', "e/v1/loads")


def test_versions_that_nobody_gave_are_unknown():
    assert decoded(b'{"weight_version": "12"}', ModelInfo, "e").version == 12
    assert decoded(b'{"weight_version": "default"}', ModelInfo, "e").version is None
    assert decoded(b"{}", ServerInfo, "e") == ServerInfo()
    with pytest.raises(EngineRefused, match="does not decode"):
        decoded(b"\xff", ModelInfo, "e")
