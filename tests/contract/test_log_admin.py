"""`headrace log init` and `headrace log status`: topics as asked for, read back from a real broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

import headrace
from lake import config as configs
from lake.kafka_topics import COMPACTED_AFTER_MS, Keeping
from lake.layout import Run
from lake.log import open_log
from lake.log_admin import duration_ms, size_bytes
from lake.store import Store
from tests.support import kafka
from tests.support.events import cell, tool


def call(*arguments: str) -> tuple[int, Any]:
    """Exit status and what was printed as JSON, or as text where it is none."""
    done = CliRunner().invoke(headrace.cli, ["log", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout) if "--json" in arguments else done.output


@pytest.fixture
def url(kafka_broker: kafka.Broker) -> str:
    return f"kafka://{kafka_broker.address}/init-{uuid.uuid4().hex[:12]}"


def settings(document: Any) -> dict[str, dict[str, Any]]:
    return {row["topic"]: row for row in document["topics"]}


@pytest.mark.kafka
def test_init_makes_the_topics_as_asked_for(url: str) -> None:
    code, said = call(
        "init", url, "--partitions", "3", "--retention", "30d", "--retention-bytes", "20G",
        "--segment-bytes", "2M", "--flush-each", "--json",
    )  # fmt: skip
    assert code == 0
    topics = settings(said)
    assert list(topics) == ["calls", "tools", "executions", "scores", "groups", "policy", "cells"]
    for name, topic in topics.items():
        single = name in ("policy", "cells")
        assert topic["partitions"] == (1 if single else 3)
        assert topic["replication"] == 1
        assert topic["cleanup.policy"] == ("compact" if single else "delete")
        assert topic["retention.ms"] == ("-1" if single else str(30 * 24 * 3600 * 1000))
        assert topic["retention.bytes"] == ("-1" if single else str(20 << 30))
        assert topic["flush.messages"] == "1"
    assert topics["calls"]["segment.bytes"] == str(2 << 20)
    assert topics["cells"]["min.compaction.lag.ms"] == str(COMPACTED_AFTER_MS)
    assert open_log(url).append([tool("g", 0), cell("s", 0)])[1] == ("cells", 0, 0)


@pytest.mark.kafka
def test_a_log_made_by_opening_it_has_the_settings_of_init(url: str) -> None:
    open_log(url + "?partitions=2").close()
    _, opened = call("init", url, "--json")
    _, made = call("init", url + "-made", "--partitions", "2", "--json")
    assert opened == made
    assert settings(made)["calls"]["retention.ms"] == "-1"


@pytest.mark.kafka
def test_init_changes_what_is_there_only_when_told(url: str) -> None:
    assert call("init", url)[0] == 0
    code, said = call("init", url, "--retention", "12h", "--json")
    assert code == 1
    assert said["different"]["calls"] == {"retention.ms": str(12 * 3600 * 1000)}
    assert settings(said)["calls"]["retention.ms"] == "-1"
    assert "--alter changes it" in call("init", url, "--retention", "12h")[1]
    code, said = call("init", url, "--retention", "12h", "--alter", "--json")
    assert (code, said["different"]) == (0, {})
    assert settings(said)["calls"]["retention.ms"] == str(12 * 3600 * 1000)
    assert settings(said)["policy"]["cleanup.policy"] == "compact"
    assert call("init", url, "--retention", "forever", "--no-flush-each", "--alter")[0] == 0
    with pytest.raises(ValueError, match="calls has 4 partitions, asked for 5; their number is fixed"):
        call("init", url, "--partitions", "5")
    with pytest.raises(ValueError, match="says partitions=2, --partitions 3; give one of them"):
        call("init", url + "?partitions=2", "--partitions", "3")


@pytest.mark.kafka
def test_status_of_a_log_in_kafka(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"has no topics calls, tools, .*; make them: headrace log init kafka:"
    ):
        call("status", url)
    log = open_log(url + "?partitions=2")
    written = log.append([tool("g", n) for n in range(5)])
    log.close()
    _, said = call("status", url, "--json")
    tools = {lane["partition"]: lane for lane in said["partitions"] if lane["topic"] == "tools"}
    assert tools[written[0][1]]["end"] == 5
    assert (said["records"], said["partitions"][0]["lake"]) == (5, None)
    assert "5 records\n" in call("status", url)[1]


def test_status_of_a_run_tells_how_far_its_lake_is(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.path.mkdir()
    config = configs.override(configs.read("demo"), ["partitions=2"])
    run.config_file.write_bytes(msgspec.json.encode(config))
    with pytest.raises(ValueError, match="there is no log; a run makes it"):
        call("status", str(run.path))
    log = run.open_log()
    ((_, lane, _), *_) = log.append([tool("g", n) for n in range(5)])
    log.close()
    schema = pa.schema([("group_id", pa.string())])
    table = Store(run.lake).table("events/tools", schema)
    table.append(schema.empty_table(), {f"log/tools/{lane}": 3}, {f"log/tools/{lane}": None})
    _, said = call("status", str(run.path), "--json")
    found = {(p["topic"], p["partition"]): (p["end"], p["lake"], p["lag"]) for p in said["partitions"]}
    assert found["tools", lane] == (5, 3, 2)
    assert found["calls", 0] == (0, 0, 0)
    assert "5 records; the lake is 2 behind" in call("status", str(run.path))[1]


# ------------------------------------------------------------------------------ words
def test_durations_and_sizes() -> None:
    assert [duration_ms(t) for t in ("90s", "15m", "12h", "30d", "forever")] == [
        90_000, 900_000, 43_200_000, 2_592_000_000, -1,
    ]  # fmt: skip
    assert [size_bytes(t) for t in ("7", "3K", "500M", "20GiB", "1TB", "unlimited")] == [
        7, 3 << 10, 500 << 20, 20 << 30, 1 << 40, -1,
    ]  # fmt: skip
    for text in ("", "d", "0d", "1.5h", "-1d", "1 d", "30D"):
        with pytest.raises(ValueError, match="is no duration: write 30d"):
            duration_ms(text)
    for text in ("", "G", "0G", "1.5G", "-1", "1 G"):
        with pytest.raises(ValueError, match="is no size: write 500M"):
            size_bytes(text)


def test_bounds_of_what_may_be_asked_for() -> None:
    with pytest.raises(ValueError, match="segment_bytes is 1000; from 1048576 to"):
        Keeping(segment_bytes=1000)
    with pytest.raises(ValueError, match="retention_ms is 0; from 1 on, or -1 for ever"):
        Keeping(retention_ms=0)
    with pytest.raises(ValueError, match="is made when it is opened; init is for kafka"):
        call("init", "sqlite:///tmp/x.db")
