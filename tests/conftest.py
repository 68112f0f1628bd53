"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support import kafka


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Broker]:
    """A real broker: ours, or the one at HEADRACE_TEST_KAFKA=host:port."""
    address = os.environ.get("HEADRACE_TEST_KAFKA")
    if address:
        yield kafka.Broker(address)
        return
    with kafka.running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_url(kafka_broker: kafka.Broker) -> Callable[..., str]:
    """Makes the URL of a log of its own: `kafka_url(partitions=2)`.  Mark its tests `kafka`."""

    def url(partitions: int = 1) -> str:
        return f"kafka://{kafka_broker.address}/test-{uuid.uuid4().hex[:12]}?partitions={partitions}"

    return url
