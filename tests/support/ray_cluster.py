"""A Ray cluster of two nodes on this machine, for drivers in other processes.

Everything listens on the loopback only; that Ray does so is its setting for Windows and macOS, where a
cluster of several machines does not exist.  It runs in a process of its own, since Ray warns a lot.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
NODES = 2


@contextmanager
def ray_cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster with one core on each of two nodes, and the environment of its drivers."""
    # a short path: that of a socket in it has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield from _running(Path(folder))


def _running(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    environment = os.environ | LOOPBACK | {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "cluster.log").open("wb") as errors:
        cluster = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        for line in cluster.stdout:
            if line.startswith("address "):
                yield line.split()[1], environment
                return
        raise RuntimeError(f"Ray did not start: {(folder / 'cluster.log').read_text()[-3000:]}")
    finally:
        cluster.stdin.close()  # it ends then, and takes its nodes with it
        cluster.stdout.read()
        cluster.stdout.close()
        if cluster.wait(60):
            raise RuntimeError(f"Ray did not end well: {(folder / 'cluster.log').read_text()[-3000:]}")


def main() -> None:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        print(f"address {cluster.address}", flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
