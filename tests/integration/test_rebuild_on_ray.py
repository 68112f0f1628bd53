"""A rebuild on a Ray cluster of two nodes makes the lake that one process makes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake.layout import Run
from tests.support.command import headrace
from tests.support.ingested import GROUPS, ingested_run
from tests.support.ray_cluster import NODES, ray_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'headrace[ray]'"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ingested_run(tmp_path_factory.mktemp("made") / "run", partitions=4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, dict[str, str]]]:
    with ray_cluster() as found:
        yield found


def test_two_nodes_share_a_rebuild_and_it_equals_the_lake(
    made: Run, cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, environment = cluster
    arguments = (
        "lake",
        "rebuild",
        str(made.path),
        "--ray",
        address,
        "--into",
        str(tmp_path / "again"),
        "--json",
    )
    done = headrace(*arguments, folder=tmp_path, environment=environment)
    found = json.loads(done.stdout)
    assert found["differing"] == []
    assert found["places"] == NODES
    rows = {t["table"]: t["again"] for t in found["tables"]}
    assert rows["sets/default/weights"] == 4 * GROUPS
    assert {t["table"]: t["rows"] for t in found["tables"]} == rows


def test_a_cluster_that_is_not_there_is_named(made: Run, tmp_path: Path) -> None:
    said = headrace("lake", "rebuild", str(made.path), "--ray", "127.0.0.1:1", folder=tmp_path, status=1)
    assert "no Ray cluster answers at 127.0.0.1:1" in said.stderr
