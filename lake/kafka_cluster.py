"""The way to a Kafka cluster: addresses, names of topics, settings of clients, errors in our words.

kafka://host:port[,host:port]/PREFIX[?partitions=4&replication=1]
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient

from lake.kafka_security import PREFIX, Refused, Security
from lake.log import LogCorrupt, LogError, LogUnavailable, Partition
from lake.log_common import url_options
from lake.wire import RECORD_BYTES_MAX

BATCH_BYTES_MAX = 2 * RECORD_BYTES_MAX  # of a topic: one full record with key, headers and framing
NOT_LET_IN = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)


@dataclass(frozen=True)
class Cluster:
    """Where a log lies in Kafka, how long anything may take (`wait_s`), and how clients are let in."""

    servers: tuple[str, ...]
    prefix: str
    wait_s: float
    security: Security

    @classmethod
    def of(cls, url: str, wait_s: float) -> tuple[Cluster, dict[str, int]]:
        """The cluster that a log URL names, and the URL's options.

        Raises ValueError for a bad URL, or bad settings of TLS or SASL (`lake.kafka_security`).
        """
        rest, options = url_options(url, ("partitions", "replication"))
        match = re.fullmatch(r"kafka://([^/,\s]+:\d+(?:,[^/,\s]+:\d+)*)/([A-Za-z0-9._-]{1,200})", rest)
        if match is None:
            raise ValueError(f"log {url!r}: write kafka://host:port[,host:port]/PREFIX[?partitions=4]")
        return cls(tuple(match[1].split(",")), match[2], wait_s, Security.from_environment()), options

    def __str__(self) -> str:
        return f"log kafka://{','.join(self.servers)}/{self.prefix}"

    @property
    def wait_ms(self) -> int:
        return int(1000 * self.wait_s)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Raise what kafka-python raises as LogUnavailable where trying again may help.

        LogCorrupt where records are gone, LogError where the brokers do not let us in.
        """
        began = time.monotonic()
        try:
            yield
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            raise LogCorrupt(
                f"{self}: {what}: records that were there are gone ({error}); retention removed them, or a "
                "broker lost them: restore the log, or read it from its beginning into a fresh folder"
            ) from error
        except Refused as error:
            raise LogError(f"{self}: {what}: {error}") from error
        except NOT_LET_IN as error:
            raise LogError(
                f"{self}: {what}: authentication failed for user {self.security.username!r} by "
                f"{self.security.mechanism} ({error}); see {PREFIX}SASL_USERNAME, {PREFIX}SASL_PASSWORD and "
                f"{PREFIX}SASL_MECHANISM"
            ) from error
        except AuthorizationError as error:
            raise LogError(
                f"{self}: {what}: user {self.security.username!r} may not do that ({error}); give it "
                f"READ, WRITE, DESCRIBE and CREATE on topics {self.prefix}.*, READ on groups {self.prefix}.*"
            ) from error
        except (KafkaError, TimeoutError, OSError) as error:
            raise LogUnavailable(
                f"{self}: {what} failed after {time.monotonic() - began:.1f} s (at most {self.wait_s:g} s) "
                f"over {self.security.protocol}: {str(error) or type(error).__name__}; see that the brokers "
                "run and answer at this address (`infra/kafka/kafka.sh status`), then try again"
            ) from error

    @property
    def request_ms(self) -> int:
        """A request ends well before `wait_s`, so that a lost one is made again."""
        return max(1000, min(10_000, self.wait_ms // 2))

    def client(self, make: Callable[..., Any], **settings: Any) -> Any:
        """A client of kafka-python.  One that cannot connect would leave its thread behind: it is ended.

        Where it is not let in it gives up at once, not after `wait_s` of trying the same again.
        """
        made: list[Any] = []

        def network(*args: Any, **kwargs: Any) -> Any:
            made.append(KafkaNetClient(*args, **kwargs))
            _give_up_if_refused(made[-1]._manager)
            return made[-1]

        try:
            return make(
                bootstrap_servers=list(self.servers),
                client_id="headrace",
                bootstrap_timeout_ms=self.wait_ms,
                request_timeout_ms=self.request_ms,
                reconnect_backoff_max_ms=1000,
                kafka_client=network,
                **self.security.settings(),
                **settings,
            )
        except BaseException:
            for network_client in made:
                network_client.close()
            raise

    def consumer(self, **settings: Any) -> Any:
        """A consumer without a group: it reads what it is told to, and commits nothing."""
        return self.client(
            KafkaConsumer,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            metrics_enabled=False,
            **settings,
        )

    def topic(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    def lane(self, partition: Partition) -> TopicPartition:
        return TopicPartition(self.topic(partition[0]), partition[1])

    def reach(self) -> None:
        """Wait until a broker accepts a connection; kafka-python leaves a socket open for each refusal.

        Raises Refused where a broker speaks another protocol than we do.
        """
        deadline = time.monotonic() + self.wait_s
        while True:
            for server in self.servers:
                host, _, port = server.rpartition(":")
                try:
                    left = max(0.1, deadline - time.monotonic())
                    self.security.probe(host.strip("[]"), int(port), left)
                    return
                except OSError as error:
                    refusal = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"no broker accepts a connection ({refusal})")
            time.sleep(0.1)


def _give_up_if_refused(manager: Any) -> None:
    """End the bootstrap of a client with the error of a broker that did not let it in.

    kafka-python 3.0.12 would log it and try again until its time is over.
    """
    connect, refusals = manager.get_connection, []

    def note(error: BaseException) -> None:
        if isinstance(error, NOT_LET_IN):
            refusals.append(error)

    def get_connection(*args: Any, **kwargs: Any) -> Any:
        if refusals and not manager.bootstrapped:
            raise refusals[0]
        connection = connect(*args, **kwargs)
        connection.init_future.add_errback(note)
        return connection

    manager.get_connection = get_connection
