"""A real S3 server on the loopback: SeaweedFS, from its package on PyPI."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import botocore.session
import pytest
from s3fs import S3FileSystem

WEED = Path(sys.executable).with_name("weed")
KEY, SECRET = "headrace", "headrace-secret"
READY_S_MAX = 60.0


def _free_ports(count: int) -> list[int]:
    """Ports p such that p and p + 10000 are free: SeaweedFS puts its gRPC there.

    At random: test processes have numbers that follow each other, and start servers at the same time.
    """
    found: list[int] = []
    while len(found) < count:
        candidate = random.randrange(20_000, 30_000)
        if candidate in found:
            continue
        try:
            for port in (candidate, candidate + 10000):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
        except OSError:
            continue
        found.append(candidate)
    return found


class S3Server:
    """One server: `environment` is how its clients find it.  Stopped and started again it has what it had."""

    def __init__(self, folder: Path) -> None:
        master, volume, filer, self._port = _free_ports(4)
        access = [
            {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": access}))
        (folder / "data").mkdir()
        self._folder, self.address = folder, f"http://127.0.0.1:{self._port}"
        self._command = [
            str(WEED), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}",
            f"-master.port={master}", f"-volume.port={volume}", "-volume.max=20", "-filer",
            f"-filer.port={filer}", "-s3", f"-s3.port={self._port}", f"-s3.config={folder / 's3.json'}",
            "-s3.port.iceberg=0", "-s3.port.lance=0",  # else on fixed ports: two servers would not start
        ]  # fmt: skip
        self._server: subprocess.Popen[bytes] | None = None
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.address,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Returns when it answers."""
        with (self._folder / "weed.log").open("ab") as output:
            self._server = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, cwd=self._folder
            )
        _wait(self._server, self.address, self._folder / "weed.log")

    def pause(self) -> None:
        """It takes connections and answers nothing, as a machine that hangs."""
        assert self._server
        self._server.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._server
        self._server.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()  # it ignores SIGTERM
            self._server.wait()


@contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """A server with its data in `folder`, started; killed at the end."""
    server = S3Server(folder)
    S3FileSystem.clear_instance_cache()  # else a client of the server before this one is used on
    try:
        server.start()
        yield server
    finally:
        server.kill()
        S3FileSystem.clear_instance_cache()


@contextmanager
def bucket(folder: Path) -> Iterator[S3Server]:
    """A server with an empty bucket `headrace`, which this process and its children find."""
    with running(folder) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        client = botocore.session.get_session().create_client("s3")
        client.create_bucket(Bucket="headrace")
        client.close()
        yield server


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + READY_S_MAX
    while True:
        try:
            urllib.request.urlopen(address, timeout=1.0).close()
        except urllib.error.HTTPError as error:
            error.close()
            return  # it answers, if only that we gave no key
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
        else:
            return
