"""The command line as a user runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import _explain, cli

HEADRACE = Path(sys.executable).with_name("headrace")

SHORT = ("--set", "steps=9", "--set", "model.warmup_steps=40", "--set", "group_size=4")
"""A run that learns nothing but does everything, in about half a minute."""


def start(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(HEADRACE), *arguments],
        cwd=folder,
        env=dict(os.environ) | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def headrace(
    *arguments: str, folder: Path, status: int = 0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its exit status must be the given one."""
    with start(arguments, folder, environment) as process:
        out, err = process.communicate()
    done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
    assert process.returncode == status, f"headrace {' '.join(arguments)}: {process.returncode}\n{out}\n{err}"
    return done


def refused(*arguments: str) -> tuple[int, str]:
    """Exit status and sentence of a command that cannot be, in this process: there is nothing to wait for."""
    try:
        cli.main(list(arguments), prog_name="headrace", standalone_mode=False)
    except (Exception, SystemExit) as error:
        return _explain(error), str(error)
    raise AssertionError(f"headrace {' '.join(arguments)} was not refused")


def document(*arguments: str, folder: Path, status: int = 0) -> Any:
    """What `headrace ... --json` prints: one JSON document and nothing else."""
    return json.loads(headrace(*arguments, "--json", folder=folder, status=status).stdout)


def committed_steps(folder: Path, run: str) -> list[dict[str, Any]]:
    """Steps as the log's tables hold them."""
    found: list[dict[str, Any]] = document(
        "sql", run, "select step, digest, count(*) n from event_policy where type = 'step.committed' "
        "group by all order by step", folder=folder,
    )  # fmt: skip
    return found


def check_whole(folder: Path, run: str, steps: int) -> None:
    """What must hold of any finished run, whatever happened to it on the way."""
    assert [s["step"] for s in committed_steps(folder, run)] == list(range(steps))
    violations = document("audit", run, folder=folder)["violations"]
    assert violations
    assert {name: n for name, n in violations.items() if n} == {}
    (identity,) = document("sql", run, "from staleness_identity", folder=folder)
    assert identity["difference"] == 0
    replayed = document("replay", run, "--check", folder=folder)
    assert replayed == {"steps": steps, "equal": steps, "differing": []}
    (dead,) = document("sql", run, "select count(*) as n from dead_letters", folder=folder)
    assert dead["n"] == 0
