"""Prometheus metrics of every process: declared here, once, with their units in their names.

    serve(9464)                       expose them at http://127.0.0.1:9464/metrics
    @appending("sqlite")              on the method of a log that writes entries
    worker_metrics().committed("calls", seconds=0.2, rows=900, size_bytes=4 << 20, tokens=1_000_000)
    proxy_metrics().in_flight.inc()
    write_targets(run.path, "proxy", ["127.0.0.1:8080"])      where Prometheus finds it

A process exposes the parts that it uses: each of the three functions makes its part at its first call
and returns the same one from then on.  Everything here may be called from any thread, and costs about
a microsecond: children of labels are looked up once.  No label holds an id of a group, an execution or
a call, so the number of series is bounded.

lag             records of the log, by topic and partition, that the lake does not hold yet
ready_seconds   from the last score of a group (its time in the log) until `group.ready` is in the log
added_seconds   what the proxy adds to an answered call: all of it but the engine and the waits for it
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)

if TYPE_CHECKING:
    from lake.log_common import Entry

Write = TypeVar("Write", bound=Callable[..., Any])  # (log, Sequence[Entry]) -> places

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)  # process_resident_memory_bytes, process_cpu_seconds_total, ...
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From an SQLite commit on a fast disk to the longest wait for a broker.
APPEND_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
COMMIT_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
READY_S = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0)
CALL_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)
ADDED_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)


class MetricsError(RuntimeError):
    """Metrics cannot be exposed: where, why, the next step."""


def _counter(name: str, what: str, *labels: str) -> Counter:
    return Counter(f"headrace_{name}", what, labels, registry=REGISTRY)


def _gauge(name: str, what: str, *labels: str) -> Gauge:
    return Gauge(f"headrace_{name}", what, labels, registry=REGISTRY)


def _histogram(name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"headrace_{name}", what, labels, buckets=buckets, registry=REGISTRY)


class _LogFamilies:
    """The metrics of every kind of log; label `log` is `sqlite` or `kafka`."""

    def __init__(self) -> None:
        self.seconds = _histogram(
            "log_append_seconds", "Seconds of an append, until the log acknowledged it.", APPEND_S, "log"
        )
        self.records = _counter("log_appended_records_total", "Records that the log acknowledged.", "log")
        self.bytes = _counter("log_appended_bytes_total", "Bytes of encoded events acknowledged.", "log")
        self.errors = _counter("log_append_errors_total", "Appends that failed, by error.", "log", "kind")


class LogMetrics:
    """The metrics of one kind of log."""

    def __init__(self, families: _LogFamilies, log: str) -> None:
        self._log, self._errors = log, families.errors
        self._seconds = families.seconds.labels(log)
        self._records = families.records.labels(log)
        self._bytes = families.bytes.labels(log)

    @contextmanager
    def append(self, records: int, size_bytes: int) -> Iterator[None]:
        """Around one append of so many records and bytes; an error is counted and goes on."""
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self._errors.labels(self._log, type(error).__name__).inc()
            raise
        self._seconds.observe(time.perf_counter() - began)
        self._records.inc(records)
        self._bytes.inc(size_bytes)


class WorkerMetrics:
    """The metrics of an ingest worker."""

    def __init__(self) -> None:
        self._lag = _gauge(
            "worker_lag_records", "Records of the log that the lake does not hold yet.", "topic", "partition"
        )
        self._lagging: set[tuple[str, int]] = set()
        self._lag_lock = Lock()
        self.lanes = _gauge("worker_lanes_owned", "Lanes that this worker owns now.")
        self.pending_bytes = _gauge("worker_pending_bytes", "Bytes read from the log and not committed yet.")
        self.pending_records = _gauge("worker_pending_records", "Records read and not committed yet.")
        self._seconds = _histogram(
            "worker_commit_seconds", "Seconds of one commit: write, fsync, commit.", COMMIT_S, "table"
        )
        self._rows = _counter("worker_rows_total", "Rows committed.", "table")
        self._bytes = _counter("worker_bytes_total", "Bytes of committed Parquet files.", "table")
        self._tokens = _counter("worker_tokens_total", "Unique tokens committed (context and output).")
        self._dead = _counter("worker_dead_letters_total", "Records put into dead_letters.", "topic")
        self._twice = _counter("worker_duplicates_total", "Repeats of an event dropped.", "topic")
        self.batches = _counter("worker_batches_total", "Batches committed.")
        self.groups_ready = _counter("worker_groups_ready_total", "Groups announced as ready.")
        self.groups_held = _gauge(
            "worker_groups_held", "Complete groups that are not announced: their rows violate an audit."
        )
        self.ready_seconds = _histogram(
            "worker_ready_seconds", "Seconds from the last score of a group to group.ready.", READY_S
        )
        self.rebalances = _counter("worker_rebalances_total", "Changes of the lanes that this worker owns.")
        self.fenced = _counter("worker_fenced_total", "Commits refused because another worker took over.")
        self._errors = _counter("worker_store_errors_total", "Commits that failed, by error.", "kind")

    def lags(self, lags: Mapping[tuple[str, int], int]) -> None:
        """The lag of every partition that this worker owns now; partitions it lost are forgotten."""
        with self._lag_lock:
            for topic, partition in self._lagging - lags.keys():
                self._lag.remove(topic, str(partition))
            self._lagging = set(lags)
            for (topic, partition), records in lags.items():
                self._lag.labels(topic, str(partition)).set(records)

    @cache  # noqa: B019  one object a process
    def _of_table(self, table: str) -> tuple[Histogram, Counter, Counter]:
        return self._seconds.labels(table), self._rows.labels(table), self._bytes.labels(table)

    def committed(self, table: str, *, seconds: float, rows: int, size_bytes: int, tokens: int = 0) -> None:
        """One commit of a table (`calls`, or a derived one such as `weights`)."""
        seconds_of, rows_of, bytes_of = self._of_table(table)
        seconds_of.observe(seconds)
        rows_of.inc(rows)
        bytes_of.inc(size_bytes)
        if tokens:
            self._tokens.inc(tokens)

    def dead_letters(self, topic: str, records: int) -> None:
        self._dead.labels(topic).inc(records)

    def duplicates(self, topic: str, records: int) -> None:
        self._twice.labels(topic).inc(records)

    def store_error(self, error: BaseException) -> None:
        """A commit that failed for a reason of the store's: StoreFull, StoreUnavailable, ..."""
        self._errors.labels(type(error).__name__).inc()


@dataclass(slots=True)
class EngineTime:
    """Seconds of a call that the engine took, waits for it included."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


class ProxyMetrics:
    """The metrics of the capture proxy.  `outcome` is `answered` or the code of a refusal."""

    def __init__(self) -> None:
        self._calls = _counter("proxy_calls_total", "Calls that ended.", "role", "outcome")
        self._refused = _counter("proxy_refused_total", "Requests refused before any call began.", "code")
        self._seconds = _histogram("proxy_call_seconds", "Seconds of a call, asked to ended.", CALL_S, "role")
        self.added_seconds = _histogram(
            "proxy_added_seconds", "Seconds of an answered call outside the engine.", ADDED_S
        )
        self.in_flight = _gauge("proxy_calls_in_flight", "Calls that run now.")
        self.calls_waiting = _gauge("proxy_calls_waiting", "Calls that wait for a place at an engine.")
        self.waited_seconds = _histogram(
            "proxy_waited_seconds",
            "Seconds that a call waited for a place at an engine, where it did.",
            CALL_S,
        )
        self._moved = _counter(
            "proxy_calls_moved_total", "Calls that went on elsewhere since their engine left.", "engine"
        )
        self.events_waiting = _gauge("proxy_events_waiting", "Events that wait for the log.")
        self._tokens = _counter(
            "proxy_tokens_total", "Tokens of prompts (in) and of what engines sampled (out).", "direction"
        )
        self._tokens_in, self._tokens_out = self._tokens.labels("in"), self._tokens.labels("out")
        self.undelivered = _counter("proxy_undelivered_total", "Answers that reached no client.")
        self._engines = _counter(
            "proxy_engine_failures_total", "Attempts that an engine failed; their calls went on.", "engine"
        )

    @cache  # noqa: B019  one object a process
    def _of_role(self, role: str, outcome: str) -> tuple[Counter, Histogram]:
        return self._calls.labels(role, outcome), self._seconds.labels(role)

    def refused(self, code: str) -> None:
        """A request that never became a call: a bad key, a body that does not parse, too many calls."""
        self._refused.labels(code).inc()

    def ended(self, role: str, outcome: str, seconds: float) -> None:
        calls, seconds_of = self._of_role(role, outcome)
        calls.inc()
        seconds_of.observe(seconds)

    @contextmanager
    def call(self, role: str, began: float) -> Iterator[EngineTime]:
        """Around one call that was asked at `began` (time.perf_counter); the engine's share is told it.

        The outcome of an error is its `code` where it has one (a refusal), else the name of its class.
        """
        engine = EngineTime()
        outcome = "answered"
        self.in_flight.inc()
        try:
            yield engine
        except BaseException as error:
            outcome = str(getattr(error, "code", type(error).__name__))
            raise
        finally:
            self.in_flight.dec()
            seconds = time.perf_counter() - began
            self.ended(role, outcome, seconds)
            if outcome == "answered":
                self.added_seconds.observe(max(0.0, seconds - engine.seconds))

    def engine_failed(self, url: str) -> None:
        """An attempt failed there: the engine was not reached, died, answered a 5xx, hung."""
        self._engines.labels(url).inc()

    def moved(self, url: str, calls: int) -> None:
        """So many calls left that engine for another."""
        self._moved.labels(url).inc(calls)

    def tokens(self, prompt: int, output: int) -> None:
        self._tokens_in.inc(prompt)
        self._tokens_out.inc(output)


@cache
def _log_families() -> _LogFamilies:
    return _LogFamilies()


@cache
def log_metrics(log: str) -> LogMetrics:
    """The metrics of a kind of log: `sqlite` or `kafka`."""
    with _MAKING:
        return LogMetrics(_log_families(), log)


def appending(log: str) -> Callable[[Write], Write]:
    """A decorator of a log's method that writes entries: each call with entries is counted as one append."""

    def decorate(write: Write) -> Write:
        @wraps(write)
        def counted(self: Any, entries: Sequence[Entry]) -> Any:
            if not entries:
                return write(self, entries)
            with log_metrics(log).append(len(entries), sum(len(e.value) for e in entries)):
                return write(self, entries)

        return cast(Write, counted)

    return decorate


@cache
def _worker() -> WorkerMetrics:
    return WorkerMetrics()


@cache
def _proxy() -> ProxyMetrics:
    return ProxyMetrics()


_MAKING = Lock()  # `cache` alone would let two threads make one part, and register it, twice


def worker_metrics() -> WorkerMetrics:
    with _MAKING:
        return _worker()


def proxy_metrics() -> ProxyMetrics:
    with _MAKING:
        return _proxy()


def exposition() -> bytes:
    """What a scrape gets, in Prometheus's text form (CONTENT_TYPE)."""
    return generate_latest(REGISTRY)


def serve(port: int, host: str = "127.0.0.1") -> int:
    """Expose the metrics at http://HOST:PORT/metrics from a thread of this process; the port.

    port  0: any that is free.  Serves until the process ends.
    Raises MetricsError where the address cannot be listened at.
    """
    try:
        server, _ = start_http_server(port, addr=host, registry=REGISTRY)
    except (OSError, OverflowError) as error:
        raise MetricsError(
            f"metrics at {host}:{port}: {error}; give another port, or 0 for any that is free"
        ) from error
    return int(server.server_port)


def write_targets(folder: Path, process: str, addresses: Sequence[str]) -> Path:
    """Tell Prometheus where a process of the run in `folder` shows its metrics: the file it is told in.

    addresses  `host:port` of each process of this name
    The file, FOLDER/targets-PROCESS.json, is of the form that `file_sd_configs` reads; series get the
    labels `run` (the folder's name) and `process`.  infra/compose.yaml reads all of them of one run.
    """
    labels = {"run": folder.absolute().name, "process": process}
    path = folder / f"targets-{process}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps([{"targets": list(addresses), "labels": labels}]))
    os.replace(part, path)  # Prometheus may read it at any moment
    return path
