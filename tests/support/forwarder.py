"""A TCP proxy whose server can be cut off, also in the moment between a request and its answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Forwarder:
    """Listens on `port` and passes bytes to a port of the loopback and back.

    cut     while True, connections are closed and new ones are not answered
    lose    the answer to the first request that holds these bytes is swallowed, and `cut` set
    """

    def __init__(self, target: int) -> None:
        self.cut, self.lose, self.lost = False, b"", 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                losing = threading.Event()
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(*pair, client, losing), daemon=True).start()

    def _pass(
        self, source: socket.socket, sink: socket.socket, client: socket.socket, losing: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is client and self.lose and self.lose in data:
                    self.lose = b""
                    losing.set()
                if source is not client and losing.is_set():
                    self.cut = True
                    self.lost += 1
                if self.cut:
                    break
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def forwarding(target: int) -> Iterator[Forwarder]:
    forwarder = Forwarder(target)
    try:
        yield forwarder
    finally:
        forwarder.close()
