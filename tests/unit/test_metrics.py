"""Metrics: what is counted is what happened, at any number of threads, and a scrape shows it."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from lake.events import CellEvent
from lake.log import LogError, open_log
from lake.metrics import (
    REGISTRY,
    MetricsError,
    exposition,
    log_metrics,
    proxy_metrics,
    serve,
    worker_metrics,
)


def value(name: str, **labels: str) -> float:
    """The value of a series now; 0 where it is not there yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def grown(name: str, act: Callable[[], object], **labels: str) -> float:
    before = value(name, **labels)
    act()
    return value(name, **labels) - before


def cell(number: int) -> CellEvent:
    return CellEvent(time_us=0, cell="c", session=str(number), change="started")


def test_the_log_counts_what_it_acknowledged(tmp_path: Path) -> None:
    log = open_log(f"sqlite://{tmp_path}/log.db")
    events = [cell(n) for n in range(7)]
    sqlite = {"log": "sqlite"}
    assert grown("headrace_log_appended_records_total", lambda: log.append(events), **sqlite) == 7
    assert grown("headrace_log_append_seconds_count", lambda: log.append(events), **sqlite) == 1
    assert grown("headrace_log_append_seconds_count", lambda: log.append([]), **sqlite) == 0
    reader = log.reader({("cells", 0): 14})
    size = grown("headrace_log_appended_bytes_total", lambda: log.append(events), **sqlite)
    assert size == sum(len(r.value) for r in reader.poll(1.0))
    reader.close()
    log.close()


def test_an_append_that_fails_is_counted_by_its_error(tmp_path: Path) -> None:
    log = open_log(f"sqlite://{tmp_path}/log.db")
    log.close()

    def fails() -> None:
        with pytest.raises(LogError):
            log.append([cell(0)])

    before = value("headrace_log_appended_records_total", log="sqlite")
    failed = {"log": "sqlite", "kind": "LogUnavailable"}
    assert grown("headrace_log_append_errors_total", fails, **failed) == 1
    assert value("headrace_log_appended_records_total", log="sqlite") == before


def test_lags_of_lost_lanes_are_forgotten() -> None:
    worker = worker_metrics()
    worker.lags({("calls", 0): 5, ("calls", 1): 6})
    worker.lags({("calls", 1): 0})
    assert (
        REGISTRY.get_sample_value("headrace_worker_lag_records", {"topic": "calls", "partition": "0"}) is None
    )
    assert REGISTRY.get_sample_value("headrace_worker_lag_records", {"topic": "calls", "partition": "1"}) == 0
    worker.lags({})


def test_threads_lose_no_count_and_make_each_part_once() -> None:
    def count() -> None:
        for _ in range(500):
            worker_metrics().committed("scores", seconds=0.01, rows=2, size_bytes=3, tokens=4)
            proxy_metrics().ended("main", "answered", 0.5)
            with log_metrics("kafka").append(1, 10):
                pass

    def together() -> None:
        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    names = {
        "headrace_worker_rows_total": ({"table": "scores"}, 2),
        "headrace_worker_tokens_total": ({}, 4),
        "headrace_proxy_calls_total": ({"role": "main", "outcome": "answered"}, 1),
        "headrace_log_appended_bytes_total": ({"log": "kafka"}, 10),
    }
    before = {name: value(name, **labels) for name, (labels, _) in names.items()}
    together()
    for name, (labels, each) in names.items():
        assert value(name, **labels) - before[name] == 8 * 500 * each


def test_a_scrape_shows_them_and_a_taken_port_is_named() -> None:
    worker_metrics().committed("calls", seconds=0.2, rows=1, size_bytes=1)
    port = serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer:
        shown = answer.read().decode()
    assert 'headrace_worker_rows_total{table="calls"}' in shown
    assert "process_resident_memory_bytes" in shown
    assert "headrace_worker_rows_total" in exposition().decode()
    with pytest.raises(MetricsError, match=rf"127\.0\.0\.1:{port}: .*another port"):
        serve(port)
    with pytest.raises(MetricsError, match="another port"):
        serve(70_000)
