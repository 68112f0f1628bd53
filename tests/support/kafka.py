"""A real Kafka broker for tests, started and stopped through infra/kafka/kafka.sh."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "infra" / "kafka"
SCRIPT = FOLDER / "kafka.sh"
INSTALL = "apt-get install -y openjdk-17-jre-headless maven"


@dataclass(frozen=True)
class Broker:
    """A running cluster; `environment` is None where it is not ours to stop or freeze."""

    address: str
    environment: dict[str, str] | None = None

    def control(self, *arguments: str) -> str:
        """What kafka.sh prints; fails the test with it where kafka.sh fails."""
        done = subprocess.run(
            [SCRIPT, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"kafka.sh {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def client_settings(self) -> dict[str, str]:
        """What `source client.env` sets for the clients of a secure cluster."""
        assert self.environment is not None
        lines = (
            (Path(self.environment["KAFKA_HOME_LOCAL"]) / "secure" / "client.env").read_text().splitlines()
        )
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)

    def pid(self, node: int = 1) -> int:
        assert self.environment is not None
        return int((Path(self.environment["KAFKA_HOME_LOCAL"]) / f"node{node}" / "pid").read_text())


def _free_port() -> int:
    """A port below the ephemeral ones with its controllers' 100 further; free for up to nine nodes."""
    for _ in range(50):
        port = random.randrange(20_000, 32_000, 10)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 100))
            except OSError:
                continue
            return port
    raise OSError("no free port between 20000 and 32000")


def require() -> None:
    """Skip where Java or Maven is missing; fail where CI is set, since there nothing may be missing."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        sentence = f"{' and '.join(missing)} missing; install as root: {INSTALL}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(sentence)


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    """The broker stopped in the middle of whatever it does, as a machine that is cut off."""
    if broker.environment is None:
        pytest.skip("HEADRACE_TEST_KAFKA names a broker that is not ours to freeze")
    os.kill(broker.pid(), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid(), signal.SIGCONT)


@contextmanager
def running(folder: Path, brokers: int = 1, secure: bool = False) -> Iterator[Broker]:
    """A cluster of our own with its data in `folder`; the jars are fetched once for all."""
    require()
    port = _free_port()
    own = {
        "KAFKA_PORT": str(port),
        "KAFKA_HOME_LOCAL": str(folder),
        "KAFKA_LIB": str(FOLDER / ".kafka" / "lib"),
    }
    addresses = ",".join(f"127.0.0.1:{port + i}" for i in range(brokers))
    broker = Broker(addresses, os.environ | own)
    try:
        broker.control("start", "--brokers", str(brokers), *(["--secure"] if secure else []))
        yield broker
    finally:
        broker.control("reset")
