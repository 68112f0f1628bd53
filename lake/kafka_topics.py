"""The topics of a log in Kafka: how they are made, what the broker says they are, what may be changed.

One place says it for `headrace log init` and for a log that is made by being opened:

    calls, tools, executions, scores, groups     PARTITIONS each, kept for ever unless told otherwise
    policy, cells                                one partition, compacted: the newest record of each key stays

The key of an event of policy and cells is its event id (of a heartbeat the cell's), so that compaction
takes away nothing but what is superseded, and no sooner than COMPACTED_AFTER, so that an ingest worker
that was down for days still sees it all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from lake.events import TOPICS, TOPICS_SINGLE
from lake.kafka_cluster import BATCH_BYTES_MAX, Cluster
from lake.log import LogError
from lake.log_common import partition_counts

PARTITIONS = 4  # of a log made without saying; they share out ingestion, and cannot be changed later
FOREVER = -1
COMPACTED_AFTER_MS = 7 * 24 * 3600 * 1000
# the segment that is written to is never compacted: these two topics are small, so it is short
COMPACTED_SEGMENT_MS, COMPACTED_SEGMENT_BYTES = 3600 * 1000, 16 << 20
SEGMENT_BYTES, SEGMENT_BYTES_MIN = 128 << 20, 1 << 20  # Kafka 4 refuses less
AGAIN_S = 0.2
TOPIC_ALREADY_EXISTS = 36  # of the Kafka protocol
SHOWN = (
    "cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes", "min.insync.replicas",
    "flush.messages", "max.message.bytes", "min.compaction.lag.ms", "message.timestamp.type",
)  # fmt: skip

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How long records are kept, and how safely; None: as it is, for a new log as `defaults` says.

    `retention_bytes` is of each partition.  Compacted topics keep their newest records whatever it is.
    `flush_each` syncs the disk with every batch: one broker then outlives a power cut, at a cost.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_bytes: int | None = None
    flush_each: bool | None = None

    def __post_init__(self) -> None:
        for name in ("retention_ms", "retention_bytes"):
            value = getattr(self, name)
            if value is not None and value != FOREVER and value < 1:
                raise ValueError(f"{name} is {value}; from 1 on, or {FOREVER} for ever")
        if self.segment_bytes is not None and not SEGMENT_BYTES_MIN <= self.segment_bytes < 1 << 31:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}; from {SEGMENT_BYTES_MIN} to {2**31 - 1}"
            )

    def asked(self, topic: str) -> dict[str, str]:
        """What was asked for, as settings of a topic."""
        compacted = topic in TOPICS_SINGLE
        values = {
            "retention.ms": None if compacted else self.retention_ms,
            "retention.bytes": None if compacted else self.retention_bytes,
            "segment.bytes": None if compacted else self.segment_bytes,
            "flush.messages": {True: 1, False: 2**63 - 1, None: None}[self.flush_each],
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def defaults(topic: str, replication: int) -> dict[str, str]:
    """The settings of a topic of a new log, stamped with the broker's clock."""
    if topic in TOPICS_SINGLE:
        kept = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(COMPACTED_AFTER_MS),
            "segment.ms": str(COMPACTED_SEGMENT_MS),
            "segment.bytes": str(COMPACTED_SEGMENT_BYTES),
        }
    else:
        kept = {"cleanup.policy": "delete", "segment.bytes": str(SEGMENT_BYTES)}
    return kept | {
        "retention.ms": str(FOREVER),
        "retention.bytes": str(FOREVER),
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(BATCH_BYTES_MAX),
        "min.insync.replicas": "2" if replication >= 3 else "1",
    }


class Topic(msgspec.Struct, frozen=True):
    """A topic as the broker describes it."""

    topic: str
    partitions: int
    replication: int
    settings: dict[str, str]


def create(
    cluster: Cluster, partitions: int | None = None, replication: int = 1, keeping: Keeping | None = None
) -> dict[str, int]:
    """Make the topics that are missing; the number of partitions of each.

    Raises ValueError where topics have another number of partitions, LogError where the broker refuses,
    LogUnavailable.
    """

    def make(admin: Any) -> dict[str, int]:
        found = {name: len(parts) for name, parts in _found(cluster, admin).items()}
        if len(found) == len(TOPICS):
            return found
        counts = partition_counts(partitions or found.get("calls", PARTITIONS))
        keep = keeping or Keeping()
        missing = {
            cluster.topic(t): {
                "num_partitions": n,
                "replication_factor": replication,
                "configs": defaults(t, replication) | keep.asked(t),
            }
            for t, n in counts.items()
            if t not in found
        }
        # another process may make them meanwhile: what counts is what is there afterwards
        _check_created(cluster, admin.create_topics(missing, timeout_ms=cluster.wait_ms, raise_errors=False))
        admin.wait_for_topics([cluster.topic(t) for t in counts], timeout_ms=cluster.wait_ms)
        return {name: len(parts) for name, parts in _found(cluster, admin).items()}

    with cluster.explained("opening"):
        found = _asked(cluster, make)
    expected = partition_counts(partitions or found["calls"])
    for topic, count in expected.items():
        if found[topic] != count:
            raise ValueError(
                f"{cluster}: {topic} has {found[topic]} partitions, asked for {count}; their number is "
                "fixed when a log is made: leave it out, or give another prefix"
            )
    return expected


def described(cluster: Cluster) -> list[Topic]:
    """The topics that are there, in the order of the catalogue, with the settings in SHOWN.

    Raises LogError, LogUnavailable.
    """

    def describe(admin: Any) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
        found = _found(cluster, admin)
        asked = [ConfigResource(ConfigResourceType.TOPIC, cluster.topic(t), list(SHOWN)) for t in found]
        return found, admin.describe_configs(asked, config_filter="all")["topic"] if asked else {}

    with cluster.explained("looking at the topics"):
        found, settings = _asked(cluster, describe)
    return [
        Topic(
            topic=topic,
            partitions=len(found[topic]),
            replication=len(found[topic][0]["replica_nodes"]),
            settings={n: v["value"] for n, v in settings[cluster.topic(topic)].items()},
        )
        for topic in TOPICS
        if topic in found
    ]


def differing(topics: list[Topic], keeping: Keeping) -> dict[str, dict[str, str]]:
    """For each topic the settings that were asked for and are otherwise: name -> wanted value."""
    wanted = {
        t.topic: {n: v for n, v in keeping.asked(t.topic).items() if t.settings.get(n) != v} for t in topics
    }
    return {topic: settings for topic, settings in wanted.items() if settings}


def alter(cluster: Cluster, changes: Mapping[str, Mapping[str, str]]) -> None:
    """Change settings of topics.  Never their cleanup: keys of an older log would not survive it.

    Raises LogError where the broker refuses, LogUnavailable.
    """
    with cluster.explained("changing the topics"):
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, cluster.topic(topic), dict(settings))
            for topic, settings in changes.items()
        ]
        answer = _asked(cluster, lambda admin: admin.alter_configs(resources))
    refused = {n: said for n, said in answer.get("topic", {}).items() if said != "OK"}
    if refused:
        raise LogError(f"{cluster}: the broker refused to change {refused}")


def _asked(cluster: Cluster, ask: Callable[[Any], Answer]) -> Answer:
    """What an administrator is told; asked again where the broker that it chose is away.

    Raises KafkaError where no broker answers within the cluster's `wait_s`, or one refuses.
    """
    until = time.monotonic() + cluster.wait_s
    while True:
        cluster.reach()
        try:
            admin = cluster.client(KafkaAdminClient)
            try:
                return ask(admin)
            finally:
                admin.close()
        except KafkaError as error:
            if not error.retriable or time.monotonic() > until:
                raise
        time.sleep(AGAIN_S)


def _found(cluster: Cluster, admin: Any) -> dict[str, list[dict[str, Any]]]:
    """The partitions of the topics that are there."""
    names = {cluster.topic(topic): topic for topic in TOPICS}
    described = admin.describe_topics(list(names))
    return {names[t["name"]]: t["partitions"] for t in described if t["error_code"] == 0}


def _check_created(cluster: Cluster, answer: dict[str, Any]) -> None:
    for topic in answer["topics"]:
        if topic["error_code"] not in (0, TOPIC_ALREADY_EXISTS):
            raise LogError(
                f"{cluster}: the broker refused to make {topic['name']}: error {topic['error_code']}, "
                f"{topic.get('error_message')}"
            )
