"""The same run with its log on a real Kafka broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import SHORT, check_whole, document

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_on_kafka_holds_and_replays(tmp_path: Path, kafka_url: Callable[..., str]) -> None:
    url = kafka_url(partitions=3)
    said = document("run", "demo", *SHORT, "--set", f"log={url}", "--run", "runs/on-kafka", folder=tmp_path)
    assert said["steps"] == 9
    check_whole(tmp_path, "runs/on-kafka", 9)
    (spread,) = document(
        "sql", "runs/on-kafka", "select count(distinct log_partition) as n from event_calls", folder=tmp_path
    )
    assert spread["n"] == 3
