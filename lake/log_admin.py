"""Looking after a log: `headrace log init` makes one in Kafka, `headrace log status` says how it stands."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lake.events import TOPICS
from lake.layout import Run
from lake.log import LogError, open_log
from lake.store import Store
from lake.tables import app_id

if TYPE_CHECKING:
    from lake.kafka_topics import Keeping

WAIT_S = 20.0
ALTERED_S = 5.0  # a change is told to the brokers within milliseconds after it is made
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
FOREVER = -1


class Lane(msgspec.Struct, frozen=True):
    """One partition.  `records` counts offsets, an upper bound where compaction left gaps.

    `lake` is the offset that the lake has reached and `lag` what it has not; None without a lake.
    """

    topic: str
    partition: int
    begin: int
    end: int
    records: int
    lake: int | None = None
    lag: int | None = None


class NoLog(ValueError):
    """There is no log at this address."""


def duration_ms(text: str) -> int:
    """`30d`, `12h`, `15m`, `90s` or `forever` in milliseconds (FOREVER).  Raises ValueError."""
    if text == "forever":
        return FOREVER
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 30d, 12h, 15m, 90s or forever")
    return int(match[1]) * UNITS_MS[match[2]]


def size_bytes(text: str) -> int:
    """`500M`, `20GiB`, a number of bytes or `unlimited` (FOREVER).  Raises ValueError."""
    if text == "unlimited":
        return FOREVER
    match = re.fullmatch(r"([1-9]\d{0,14})([KMGT]?)(?:iB|B)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no size: write 500M, 20G, a number of bytes or unlimited")
    return int(match[1]) * UNITS_BYTES[match[2]]


def init(
    url: str, partitions: int | None, replication: int | None, keeping: Keeping, *, alter: bool
) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """Make what is missing of a log in Kafka, and change how its records are kept where `alter`.

    Returns the topics as the broker describes them afterwards, and the settings that are otherwise than
    asked for (none where `alter`).  Raises ValueError for a bad URL or another number of partitions than
    the topics have, LogError, LogUnavailable.
    """
    from lake import kafka_topics
    from lake.kafka_cluster import Cluster

    if not url.startswith("kafka://"):
        raise ValueError(f"log {url!r}: a log in SQLite is made when it is opened; init is for kafka://...")
    cluster, options = Cluster.of(url, WAIT_S)
    for name, given in (("partitions", partitions), ("replication", replication)):
        if given is not None and options.setdefault(name, given) != given:
            raise ValueError(f"log {url!r} says {name}={options[name]}, --{name} {given}; give one of them")
    kafka_topics.create(cluster, options.get("partitions"), options.get("replication", 1), keeping)
    topics = kafka_topics.described(cluster)
    different = kafka_topics.differing(topics, keeping)
    if different and alter:
        kafka_topics.alter(cluster, different)
        deadline = time.monotonic() + ALTERED_S
        while different and time.monotonic() < deadline:
            topics = kafka_topics.described(cluster)
            different = kafka_topics.differing(topics, keeping)
        if different:
            raise LogError(f"{cluster}: the broker took the change and still says otherwise: {different}")
    rows = [
        {"topic": t.topic, "partitions": t.partitions, "replication": t.replication} | t.settings
        for t in topics
    ]
    return rows, different


def status(target: str) -> list[Lane]:
    """How a log stands, and for a run's folder how far its lake is.

    Makes nothing.  Raises NoLog, ValueError for a bad URL, LogUnavailable, StoreError.
    """
    url, root = target, None
    if "://" not in target:
        run = Run(Path(target))
        config = run.config()
        url, root = run.log_url(config), run.lake
    _check_there(url)
    log = open_log(url)
    try:
        begins = {(t, p): at for t in TOPICS for p, at in log.begin_offsets(t).items()}
        ends = {(t, p): at for t in TOPICS for p, at in log.end_offsets(t).items()}
    finally:
        log.close()
    reached = {} if root is None else _reached(root, list(ends))
    return [
        Lane(
            topic=topic,
            partition=p,
            begin=begins[topic, p],
            end=end,
            records=end - begins[topic, p],
            lake=None if root is None else reached.get((topic, p), 0),
            lag=None if root is None else max(0, end - reached.get((topic, p), 0)),
        )
        for (topic, p), end in ends.items()
    ]


def _check_there(url: str) -> None:
    """Raise NoLog where opening the log would make it."""
    if url.startswith("kafka://"):
        from lake import kafka_topics
        from lake.kafka_cluster import Cluster

        cluster, _ = Cluster.of(url, WAIT_S)
        there = {t.topic for t in kafka_topics.described(cluster)}
        if there != set(TOPICS):
            missing = ", ".join(t for t in TOPICS if t not in there)
            raise NoLog(f"{cluster} has no topics {missing}; make them: headrace log init {url}")
    elif url.startswith("sqlite://"):
        path = Path(url.removeprefix("sqlite://").partition("?")[0])
        if not path.is_file():
            raise NoLog(f"{path}: there is no log; a run makes it")


def _reached(root: str, lanes: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The offset after the last one that the lake holds, for each partition; from the commits alone."""
    store = Store(root)
    tables = {topic: store.existing(f"events/{topic}") for topic in {topic for topic, _ in lanes}}
    return {
        (topic, p): table.offset(app_id(topic, p)) or 0
        for topic, p in lanes
        if (table := tables[topic]) is not None
    }
