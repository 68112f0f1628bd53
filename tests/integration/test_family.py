"""A program whose children would outlive it: they end with it, and with whoever started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lake.processes import Process

PROGRAM = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(str(child.pid))
exec(sys.argv[1])
"""
STARTER = """
import sys, time
from pathlib import Path
from lake.processes import Process
Process("program", ("program", "time.sleep(600)"), Path("out"), children=True).start()
time.sleep(600)
"""


def number_in(file: Path) -> int:
    until = time.monotonic() + 60
    while not (file.is_file() and file.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return int(file.read_text())


def gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a process of the program above, which then does what it is told."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda then: Process("program", ("program", then), tmp_path / "out", children=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGQUIT])
def test_a_program_that_is_killed_takes_its_children_along(program, tmp_path, number):
    process = program("time.sleep(600)")
    process.start()
    child = number_in(tmp_path / "child")
    psutil.Process(child).parent().send_signal(number)
    process.popen.wait(30)
    assert process.code() == -number
    process.end()
    assert gone(child)


def test_who_leads_the_family_is_killed(program, tmp_path):
    process = program("time.sleep(600)")
    process.start()
    child = number_in(tmp_path / "child")
    parent = psutil.Process(child).ppid()
    process.popen.kill()
    process.end()
    assert gone(child)
    assert gone(parent)


def test_a_program_that_is_asked_to_stop_says_how_it_ended(program, tmp_path):
    then = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    process = program(f"{then}; pathlib.Path('set').write_text('1'); time.sleep(600)")
    process.start()
    child = number_in(tmp_path / "child")
    number_in(tmp_path / "set")
    process.ask_to_stop()
    process.end()
    assert process.code() == 3
    assert gone(child)


def test_the_starter_is_killed(program, tmp_path):
    with subprocess.Popen([sys.executable, "-c", STARTER]) as starter:
        child = number_in(tmp_path / "child")
        starter.kill()
    assert gone(child)
