"""Fixtures that several kinds of tests share, and which worker runs which tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support import kafka, sglang
from tests.support.engines import free_port


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


@pytest.fixture(scope="session")
def sglang_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sglang.Server]:
    """A real SGLang server, started once: ours, or HEADRACE_TEST_SGLANG=URL,MODEL,MODEL_2.

    Tests leave it as they found it: not paused, idle, on the weights of `model`.  Mark them `sglang`.
    """
    named = os.environ.get("HEADRACE_TEST_SGLANG")
    if named:
        yield sglang.named(named)
        return
    mooncake = (sglang.MOONCAKE, "--engine-info-bootstrap-port", str(free_port()))
    with sglang.running(tmp_path_factory.mktemp("sglang"), *mooncake) as server:
        yield server


class OneServer(LoadFileScheduling):
    """A file's tests run in one worker, and so do all tests that share the one SGLang server."""

    def _split_scope(self, nodeid: str) -> str:
        return "sglang" if sglang.named_so(nodeid) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneServer | None:
    return OneServer(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of SGLang are known to the scheduler by their names, to people by their mark."""
    for item in items:
        marked = item.get_closest_marker("sglang") is not None
        if marked != sglang.named_so(item.nodeid):
            raise pytest.UsageError(
                f"{item.nodeid}: a test is marked `sglang` where its file or parameter says so, only there"
            )
        if marked:
            item.add_marker(pytest.mark.timeout(900))  # the first sets the environment up
