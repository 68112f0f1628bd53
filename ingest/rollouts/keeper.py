"""Keeps one command line: starts it, writes down what it prints, and leaves nothing of it behind.

    python -m ingest.rollouts.keeper    JSON on standard input (Kept), JSON on standard output (Ended)

A keeper of its own stands between the runner and every harness, since only an ancestor can find what a
command leaves behind.  It is the subreaper of all that the command starts (Linux): a daemon that forked
twice into a session of its own comes back to it as its child.  When the command ends, when the keeper gets
SIGTERM, or when the runner is gone, however it went, all that is left gets SIGTERM, and `stop_s` seconds
later SIGKILL until nothing is.  Elsewhere than on Linux the command's process group is all that is found.

One of many that live as long as a harness: the standard library only, until there is something to kill.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lake.parentage import adopt_orphans, die_with_parent, told_when_parent_dies

TAIL_BYTES = 1 << 16
READ_BYTES = 1 << 16
KILL_S_MAX = 10.0
"""For what does not die of SIGKILL at once: a process that waits for a disk dies when that answers."""
LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What to keep.  `output` takes standard output, and standard error too where `errors` is empty.

    parent            pid of who started the keeper: it ends with that
    output_bytes_max  of each file together with the older half of it, `output` + ".1"
    """

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    output: str
    errors: str = ""
    output_bytes_max: int = 16 << 20
    stop_s: float = 5.0
    parent: int = 0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it ended.

    code    its exit status, minus the number of the signal that ended it; None where it did not start
    failed  why it did not start, or what went wrong at its end
    tail    the end of what it printed, `errors_tail` of its standard error where that is apart
    """

    code: int | None
    failed: str = ""
    tail: str = ""
    errors_tail: str = ""
    output_bytes: int = 0


class Output:
    """A file of bounded size: what does not fit pushes the older half out.  A full disk loses output only."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path, self._half = path, max(1, bytes_max // 2)
        self._file = path.open("wb", buffering=0)
        self._size = 0
        self.total = 0
        self.tail = b""

    def write(self, data: bytes) -> None:
        self.total += len(data)
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        try:
            if self._size and self._size + len(data) > self._half:
                self._file.close()
                os.replace(self._path, f"{self._path}.1")
                self._file = self._path.open("wb", buffering=0)
                self._size = 0
            self._size += self._file.write(data) or 0
        except (OSError, ValueError):  # ValueError: the file could not be opened again
            return

    def close(self) -> None:
        self._file.close()

    def text(self) -> str:
        """The end of it."""
        return self.tail.decode(errors="replace")


class Keeper:
    """One command's life; `run` is all of it."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._outputs = [Output(Path(p), kept.output_bytes_max) for p in (kept.output, kept.errors) if p]
        self._selector = selectors.DefaultSelector()
        self._pipes: list[int] = []
        self._code: int | None = None
        self._pid = 0
        self._stop = False

    def run(self) -> Ended:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(woken, selectors.EVENT_READ)
        try:
            self._start()
        except (OSError, ValueError) as error:
            return Ended(code=None, failed=f"{self._kept.argv[0]} could not be started: {error}")
        while self._code is None and not self._stop:
            self._look(None)
        left = self._end()
        self._read()
        for output in self._outputs:
            output.close()
        errors = self._outputs[1].text() if len(self._outputs) > 1 else ""
        failed = f"{left} processes of it could not be killed" if left else ""
        return Ended(
            code=self._code, failed=failed, tail=self._outputs[0].text(), errors_tail=errors,
            output_bytes=sum(o.total for o in self._outputs),
        )  # fmt: skip

    def _asked(self, *_: object) -> None:
        self._stop = True

    def _start(self) -> None:
        ends = [os.pipe() for _ in self._outputs]
        try:
            popen = subprocess.Popen(
                self._kept.argv,
                cwd=self._kept.cwd,
                env=self._kept.environment,
                stdin=subprocess.DEVNULL,
                stdout=ends[0][1],
                stderr=ends[-1][1],
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  this process has one thread
            )
        finally:
            for _, write in ends:
                os.close(write)
        self._pid = popen.pid
        self._popen = popen  # it is waited for by _reap; let go of, it would be waited for twice
        for read, _ in ends:
            os.set_blocking(read, False)
            self._selector.register(read, selectors.EVENT_READ)
            self._pipes.append(read)

    def _look(self, wait_s: float | None) -> bool:
        """Wait for a signal or output, take in both; whether there are children still."""
        for key, _ in self._selector.select(wait_s):
            if key.fd not in self._pipes:
                os.read(key.fd, READ_BYTES)
        self._read(once=True)
        return self._reap()

    def _read(self, *, once: bool = False) -> None:
        """What the pipes hold, all of it or at most one piece each."""
        for pipe, output in zip(list(self._pipes), self._outputs, strict=True):
            while pipe >= 0:
                try:
                    data = os.read(pipe, READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    self._selector.unregister(pipe)
                    os.close(pipe)
                    self._pipes[self._pipes.index(pipe)] = -1
                    break
                output.write(data)
                if once:
                    break

    def _reap(self) -> bool:
        """Take the ends of children, own and adopted; whether there are any still."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _end(self) -> int:
        """End all that is left, kindly and then not; how many outlived even that."""
        if not self._reap():
            return 0
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # what is stopped takes no SIGTERM
        until = time.monotonic() + self._kept.stop_s
        while self._look(LOOK_S):
            if time.monotonic() > until:
                break
        until = time.monotonic() + KILL_S_MAX
        while self._reap():
            left = self._signal(signal.SIGKILL)
            if time.monotonic() > until:
                return left
            self._look(LOOK_S)
        return 0

    def _signal(self, number: signal.Signals) -> int:
        """Send a signal to every descendant; to how many."""
        import psutil  # type: ignore[import-untyped]

        told = 0
        for process in psutil.Process().children(recursive=True):
            try:
                process.send_signal(number)
                told += 1
            except psutil.Error:  # it has ended meanwhile
                continue
        if sys.platform != "linux" and self._code is None:
            os.killpg(self._pid, number)
        return told


def main() -> int:
    """0 however the command ended: how is what it prints."""
    kept = Kept(**json.load(sys.stdin))
    adopt_orphans()
    if told_when_parent_dies(signal.SIGTERM, kept.parent):
        json.dump(asdict(Keeper(kept).run()), sys.stdout)
        sys.stdout.flush()
    os._exit(0)  # nothing of Popen's or psutil's is to be tidied up


if __name__ == "__main__":
    main()
