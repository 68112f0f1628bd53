"""A keeper and what it keeps, as real processes: how it ends, what it writes, that nothing is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from ingest.rollouts.commanded import keep
from ingest.rollouts.keeper import Ended, Kept, Output

PYTHON = sys.executable
DAEMON = """
import os, signal, sys, time
if os.fork():
    while not os.path.exists("pid"):
        time.sleep(0.01)
    {then}
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("pid.part", "w").write(str(os.getpid()))
os.rename("pid.part", "pid")
os.environ.clear()
time.sleep(600)
"""


def kept(folder: Path, *argv: str, **more: object) -> Kept:
    return Kept(
        argv=list(argv), cwd=str(folder), environment={"PATH": os.environ["PATH"], "WORD": "\u4f60 \"'"},
        output=str(folder / "output.log"), parent=os.getpid(), stop_s=0.2, **more,
    )  # fmt: skip


def daemon_of(folder: Path) -> int:
    until = time.monotonic() + 60
    while not (folder / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return int((folder / "pid").read_text())


def gone(pid: int) -> bool:
    until = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


async def test_how_commands_end(tmp_path: Path) -> None:
    ended = await keep(kept(tmp_path, "sh", "-c", 'echo "$WORD"; echo err >&2; pwd; cat; exit 3'))
    said = f"\u4f60 \"'\nerr\n{tmp_path}\n"
    assert ended == Ended(code=3, tail=said, output_bytes=len(said.encode()))
    assert (tmp_path / "output.log").read_text() == ended.tail
    assert (await keep(kept(tmp_path, "true"))).code == 0
    assert (await keep(kept(tmp_path, "sh", "-c", "kill -SEGV $$"))).code == -signal.SIGSEGV
    ended = await keep(kept(tmp_path, "/nowhere/x"))
    assert (ended.code, ended.failed.startswith("/nowhere/x could not be started")) == (None, True)


async def test_standard_error_may_be_apart(tmp_path: Path) -> None:
    ended = await keep(kept(tmp_path, "sh", "-c", "echo 1; echo no >&2", errors=str(tmp_path / "err")))
    assert (ended.tail, ended.errors_tail) == ("1\n", "no\n")
    assert (tmp_path / "err").read_text() == "no\n"


async def test_megabytes_are_bounded_and_the_end_is_kept(tmp_path: Path) -> None:
    code = "import sys\nfor i in range(60000): sys.stdout.write(f'{i:>98}!\\n')"
    ended = await keep(kept(tmp_path, PYTHON, "-c", code, output_bytes_max=1 << 20))
    assert (ended.code, ended.output_bytes) == (0, 6_000_000)
    assert ended.tail.endswith("59999!\n")
    files = [tmp_path / "output.log", tmp_path / "output.log.1"]
    assert sum(f.stat().st_size for f in files) <= 1 << 20
    assert files[0].read_text().endswith("59999!\n") or files[1].read_text().endswith("59999!\n")


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
@pytest.mark.parametrize("then", ["os._exit(0)", "os._exit(4)", "os.kill(os.getpid(), signal.SIGKILL)"])
async def test_a_daemon_that_left_its_session_does_not_outlive_its_command(tmp_path: Path, then: str) -> None:
    ended = await keep(kept(tmp_path, PYTHON, "-c", DAEMON.format(then=then)))
    assert ended.code in {0, 4, -9}
    assert not ended.failed
    assert gone(daemon_of(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
async def test_cancelled_it_returns_when_nothing_is_left(tmp_path: Path) -> None:
    task = asyncio.create_task(keep(kept(tmp_path, PYTHON, "-c", DAEMON.format(then="time.sleep(600)"))))
    pid = await asyncio.to_thread(daemon_of, tmp_path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid)


async def test_sigterm_comes_before_sigkill(tmp_path: Path) -> None:
    line = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    task = asyncio.create_task(keep(kept(tmp_path, "sh", "-c", line)))
    output = tmp_path / "output.log"
    while not output.exists() or "ready" not in output.read_text():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "saved" in output.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="the signal of a parent's death is Linux's")
def test_nothing_outlives_a_runner_that_is_killed(tmp_path: Path) -> None:
    spec = json.dumps(asdict(kept(tmp_path, PYTHON, "-c", DAEMON.format(then="time.sleep(600)"))))
    code = (
        "import json, os, subprocess, sys, time\n"
        "spec = json.loads(sys.argv[1]) | {'parent': os.getpid()}\n"
        "keeper = subprocess.Popen([sys.executable, '-m', 'ingest.rollouts.keeper'], stdin=subprocess.PIPE)\n"
        "keeper.stdin.write(json.dumps(spec).encode()); keeper.stdin.close()\n"
        "time.sleep(600)\n"
    )
    runner = subprocess.Popen([PYTHON, "-c", code, spec])
    pid = daemon_of(tmp_path)
    runner.kill()
    runner.wait()
    assert gone(pid)


async def test_a_keeper_that_is_killed_is_a_crash_with_a_reason(tmp_path: Path) -> None:
    task = asyncio.create_task(keep(kept(tmp_path, "sh", "-c", "echo $PPID > keeper; sleep 600")))
    while not (tmp_path / "keeper").exists() or not (tmp_path / "keeper").read_text():
        await asyncio.sleep(0.02)
    os.kill(int((tmp_path / "keeper").read_text()), signal.SIGKILL)
    ended = await task
    assert (ended.code, ended.failed) == (None, "its keeper was ended from outside, with status -9")


def test_an_output_that_cannot_be_written_loses_output_only(tmp_path: Path) -> None:
    output = Output(Path("/dev/full"), 1 << 20)
    output.write(b"a line\n")
    output.close()
    assert (output.text(), output.total) == ("a line\n", 7)
