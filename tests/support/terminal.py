"""A program in a terminal of its own: keys go in, and what it writes comes out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 60.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>])")
_BEGIN = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # the terminal that Ctrl-C comes from
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


class Terminal:
    """What stands on the screen is not worked out: `text` is all that was written, without escapes."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process, self._screen = process, screen
        self._written, self.text = b"", ""

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def until(self, wanted: str, after: int = 0) -> str:
        """Wait until `wanted` was written, after that many characters of `text`; what came until then."""
        ends = time.monotonic() + WAIT_S
        while wanted not in self.text[after:]:
            if not self._read(ends - time.monotonic()):
                raise AssertionError(f"no {wanted!r} came, but {self.text[after:]!r}")
        return self.text[after : self.text.index(wanted, after) + len(wanted)]

    def ask(self, keys: str, wanted: str) -> str:
        """Type, and wait for what was not there before."""
        before = len(self.text)
        self.type(keys)
        return self.until(wanted, before)

    def end(self) -> int:
        """Read on until the program has ended; its exit status."""
        while self._read(WAIT_S):
            pass
        return self.process.wait(WAIT_S)

    def _read(self, within_s: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(within_s, 0.0))
        if not ready:
            return False
        try:
            part = os.read(self._screen, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        self._written += part  # an escape may come in two parts
        self.text = _ESCAPES.sub("", self._written.decode(errors="replace")).replace("\r", "")
        return bool(part)


@contextmanager
def terminal(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], columns: int = 120
) -> Iterator[Terminal]:
    """A program that runs in a terminal of its own; killed at the end if it still does."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _BEGIN, *command],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        cwd=folder,
        env=dict(os.environ) | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"} | dict(environment),
        start_new_session=True,
    )
    os.close(inside)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(screen)
