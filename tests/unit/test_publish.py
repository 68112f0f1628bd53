"""Publication: the engine first, then the log; a refusal is named and nothing is published."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lake.events import PolicyPublished
from lake.log import Log, open_log
from lake.wire import decode
from trainer.publish import PublishError, publish


class Engine(HTTPServer):
    """Takes weight updates; answers with `status`."""

    status = 200
    asked: list[dict]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Engine)
        server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(server.status)
        self.end_headers()
        self.wfile.write(b'{"success": false, "message": "shapes differ"}')

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(f"sqlite://{tmp_path / 'log.db'}")
    yield log
    log.close()


def announced(log: Log) -> list[PolicyPublished]:
    reader = log.reader({("policy", 0): 0})
    found = [decode(r.headers, r.value) for r in reader.poll(0.2)]
    reader.close()
    return [e for e in found if isinstance(e, PolicyPublished)]


def test_the_engine_serves_what_the_log_names(engine: Engine, log: Log, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{engine.server_port}"
    publish(log, url, tmp_path / "v000003", version=3, boundary=1, digest="d")
    (asked,) = engine.asked
    assert asked == {
        "model_path": str(tmp_path / "v000003"),
        "weight_version": "3",
        "flush_cache": True,
    }
    (event,) = announced(log)
    assert (event.policy_version, event.boundary, event.weights, event.digest) == (3, 1, "v000003", "d")


def test_a_refusal_is_named_and_nothing_is_announced(engine: Engine, log: Log, tmp_path: Path) -> None:
    engine.status = 400
    with pytest.raises(PublishError, match=r"refused version 3 .* 400 .*shapes differ"):
        publish(
            log, f"http://127.0.0.1:{engine.server_port}", tmp_path / "v3", version=3, boundary=1, digest="d"
        )
    assert announced(log) == []
