"""Which worker has which lanes: membership of a Kafka consumer group, and nothing else.

Lane p is partition p of every topic that is keyed by group.  A member subscribes to one such topic only
(`executions`) with all its partitions paused: the broker shares out the partitions, and no record
is ever read here.  What is read, and from where, the lake says (`KafkaReader`, offsets in commits).

A worker's life, with what it owns on the way:

    joining --assigned--> OWNS lanes --others join or leave--> OWNS other lanes --close--> (gone)
       ^                       |
       +------ session over ---+      paused, cut off or silent for BUSY_S: owns nothing, joins again

Being told is not being safe: a worker that was paused, or is in the middle of a commit, believes that it
owns a lane until it asks.  The lake's commit refuses it then (`lake.store.Fenced`); membership only
keeps that rare.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.base import MemberState
from kafka.errors import FencedInstanceIdError, InvalidSessionTimeoutError, KafkaError

from lake.kafka_cluster import Cluster
from lake.log import LogError, LogUnavailable, Partition

logger = logging.getLogger("headrace.members")

LANES_TOPIC = "executions"
SESSION_S = 10.0  # a member that is not heard of for so long has lost its lanes
BUSY_S = 300.0  # a worker that does not ask for so long has too: longer than any commit
REBALANCE_S = 30.0  # the others wait so long for a member whose client does not answer
POLL_S = 0.5  # of the client, one after the other
PAUSE_S = 0.5  # after an error


class _Owned(ConsumerRebalanceListener):  # type: ignore[misc]
    """What is assigned now.  Called on the client's IO thread, where pausing and seeking are allowed."""

    def __init__(self, consumer: Any, assignor: CooperativeStickyAssignor) -> None:
        self._consumer, self._assignor = consumer, assignor
        self.now: tuple[int, frozenset[int]] = (0, frozenset())
        """(number of changes, lanes), replaced as a whole."""

    def _set(self, lanes: Iterable[int]) -> None:
        self.now = (self.now[0] + 1, frozenset(lanes))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for lane in assigned:
            self._consumer.pause(lane)
            self._consumer.seek(lane, 0)  # else it would ask the broker where to begin
        self._set(self.now[1] | {lane.partition for lane in assigned})

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._set(self.now[1] - {lane.partition for lane in revoked})

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._assignor.member_assignment = None  # else it would claim them when it joins again
        self._set(())


class Members:
    """This process as a member of a group of workers; safe to use from several threads.

    Lanes move one at a time and only those that must (cooperative-sticky).  With `instance` (unique in
    the group) the member is static: when it comes back within its session it has the same lanes again,
    and nobody else notices.

    A thread of its own keeps the membership, so that nobody waits for a worker in a long commit, and a
    call here costs nothing.  (kafka-python 3.0.12 forgets a join that ends between two polls: they have
    to follow each other without a gap.)
    """

    def __init__(self, cluster: Cluster, group: str, instance: str | None, session_s: float) -> None:
        """Connect and begin to join.

        Raises ValueError for a bad group, instance or session, LogUnavailable where no broker answers.
        """
        if not group or instance == "":
            raise ValueError(f"group {group!r}, instance {instance!r}: give a name, or no instance (None)")
        if not 0 < session_s < BUSY_S:
            raise ValueError(f"session_s is {session_s:g}, between 0 and {BUSY_S:g} is needed")
        self._cluster, self._instance, self._session_s = cluster, instance, session_s
        self.group = f"{cluster.prefix}.{group}"  # its name in Kafka, where logs share the groups
        assignor = CooperativeStickyAssignor()
        with cluster.explained("joining the workers"):
            self._consumer = cluster.client(
                KafkaConsumer,
                group_id=self.group,
                group_instance_id=instance,
                session_timeout_ms=int(1000 * session_s),
                heartbeat_interval_ms=int(1000 * min(1.0, session_s / 4)),
                max_poll_interval_ms=int(1000 * (REBALANCE_S + session_s)),
                partition_assignment_strategy=[assignor],
                enable_auto_commit=False,
                auto_offset_reset="latest",
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        self._owned = _Owned(self._consumer, assignor)
        self._consumer.subscribe([cluster.topic(LANES_TOPIC)], listener=self._owned)
        # when `lanes` was called, a broker looked after the group, a rebalance went on: for the last time
        self._asked = self._heard = self._rebalanced = time.monotonic()
        self._joined = -1  # the generation of the group that this member is in
        self._error: Exception | None = None
        self._positions: dict[Partition, int] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"members-{group}", daemon=True)
        self._thread.start()

    @property
    def generation(self) -> int:
        """Grows whenever what this member owns changes, also where it lost a lane and has it again."""
        return self._owned.now[0]

    def lanes(self) -> frozenset[int]:
        """What this member owns now, at once; a worker asks every few seconds at least.

        Empty before it has joined, and from the moment its session is over.  Raises ValueError where
        the broker refuses `session_s`, LogError where another process took the `instance` or this is
        closed, LogUnavailable where no broker answered for the log's `wait_s`; then ask again.
        """
        self._asked = time.monotonic()
        error = self._error
        if error is not None:
            if self._thread.is_alive():
                self._error = None
            raise error
        if self._closed.is_set():
            raise LogError(f"{self._cluster}: closed; open it again")
        return frozenset() if self._expired() else self._owned.now[1]

    def mirror(self, positions: Mapping[Partition, int]) -> None:
        """Tell Kafka how far the lake is, for its lag tools only; in the background.

        Nobody reads it back, so a failure is a line in the log of this process.
        """
        with self._lock:
            self._positions.update(positions)

    def close(self) -> None:
        """Leave.  The lanes of a dynamic member move at once, those of a static one after its session."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self._mirror()
            self._consumer.close(autocommit=False, timeout_ms=2000)

    # ------------------------------------------------------------------------- the thread
    def _run(self) -> None:
        while not self._closed.is_set():
            if time.monotonic() - self._asked > BUSY_S:  # the worker hangs: let the others have its lanes
                self._closed.wait(POLL_S)
                continue
            try:
                with self._cluster.explained("membership of the workers"):
                    self._consumer.poll(timeout_ms=int(1000 * POLL_S))
                    self._mirror()
                    self._look()
            except Exception as error:  # whatever it is, the worker has to know
                self._error = error
                if isinstance(error.__cause__, FencedInstanceIdError | InvalidSessionTimeoutError):
                    self._error = self._final(error.__cause__)
                    return
                self._closed.wait(PAUSE_S)

    def _final(self, cause: BaseException) -> Exception:
        if isinstance(cause, FencedInstanceIdError):
            return LogError(
                f"{self._cluster}: another process is the worker {self._instance!r} of {self.group} now; "
                "end one of the two, or give them different names"
            )
        return ValueError(
            f"{self._cluster}: the broker refuses a session of {self._session_s:g} s; its bounds are "
            "group.min.session.timeout.ms (6 s unless set) and group.max.session.timeout.ms"
        )

    def _look(self) -> None:
        now = time.monotonic()
        group = self._consumer.group_metadata()
        if group.state is not MemberState.STABLE or group.generation_id != self._joined:
            self._joined, self._rebalanced = group.generation_id, now
        elif self._instance and not self._consumer._coordinator._heartbeat_enabled:
            # the client's heartbeats met this error, and end without telling anybody
            raise FencedInstanceIdError(self._instance)
        if self._consumer._coordinator.coordinator_id is not None:
            self._heard = now
        elif now - self._heard > self._cluster.wait_s:
            self._heard = now  # each error has its own wait before it
            self._error = LogUnavailable(
                f"{self._cluster}: no broker looks after the workers {self.group} for "
                f"{self._cluster.wait_s:g} s; see that they run (`infra/kafka/kafka.sh status`), "
                "then ask again"
            )

    def _expired(self) -> bool:
        """Whether the session is over, also where only our own clock says so yet.

        While a rebalance goes on there are no heartbeats: the broker waits for the others.  The client's
        own session_timeout_expired() begins anew when it has found its coordinator again: too kind.
        """
        if self._consumer.group_metadata().generation_id < 0:
            return True
        answered: float = self._consumer._coordinator.heartbeat.last_receive
        return time.monotonic() - max(answered, self._rebalanced) > self._session_s

    def _mirror(self) -> None:
        """Send what waits, if a commit is possible now."""
        if self._consumer.group_metadata().state is not MemberState.STABLE:
            return
        with self._lock:
            positions, self._positions = self._positions, {}
        if not positions:
            return
        offsets = {self._cluster.lane(p): OffsetAndMetadata(at, "", -1) for p, at in positions.items()}
        try:
            self._consumer.commit_async(offsets, callback=self._mirrored)
        except KafkaError as error:
            self._mirrored(offsets, error)

    def _mirrored(self, _: Any, answer: Any) -> None:
        if isinstance(answer, Exception):
            logger.warning("%s: lag tools are behind: %s", self.group, str(answer) or type(answer).__name__)
