"""Ours beside a plain trie and the builders of two public frameworks: `python -m tests.bench compare`.

The same trace (`tests.bench.traces`: one group of four executions, 400 calls each, contexts up to 100k
tokens) goes through each, in one run, each in a process of its own (`compare_builders`).  What they make:

    trie        a dict a token: the tree, each token with the call that put it there
    matcher     ours: the same tree, as canonical delta-coded calls
    headrace    ours: the matcher, the SQL models with every leaf admitted, packed training arrays
    skyrl       SkyRL `merge_stepwise_output`: samples; a call joins the one before it where it extends it
    verifiers   verifiers `v1.graph`: a graph of messages, and a sample (ids, mask, log-probabilities) a leaf

Each has its natural input before the time runs, lists of ids or typed messages (of verifiers a short digest
stands for a message's text, so that hashing real text does not count).  Memory is what the process comes to
hold above its imports: the input of one execution in that form, and what is made of it.

The frameworks need an environment of their own; without it their rows say so:

    python3 -m venv /tmp/compare
    /tmp/compare/bin/pip install verifiers omegaconf jaxtyping datasets
    /tmp/compare/bin/pip install --no-deps skyrl skyrl-gym torchdata
    realpath .venv/lib/python3*/site-packages > $(echo /tmp/compare/lib/python3*/site-packages)/torch.pth
    COMPARE_VENV=/tmp/compare .venv/bin/python -m tests.bench compare

Others were looked at.  prime-rl is not on PyPI.  nemo-gym's release there, 0.4.0, is without its builder
of token captures, and needs Python 3.12.  agentlightning 0.3.0 merges inside a method of its daemon, which
wants a running verl.  areal 1.0.4 links calls by equal lists of messages, and not by their ids.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.traces import PAPER, SMALL, raw_calls

COMMAND = "python -m tests.bench compare"
ROOT = Path(__file__).resolve().parents[2]
EXECUTIONS = 4
OURS = {"trie": "a dict a token", "matcher": "headrace, the tree", "headrace": "headrace, training arrays"}
FRAMEWORKS = {
    "skyrl": "SkyRL, no tree: a call joins the one right before it",
    "verifiers": "verifiers, a tree of whole messages",
}
TIMEOUT_S = 900


def _write(folder: Path) -> int:
    """Put the trace there; its tokens."""
    shape = dataclasses.replace(PAPER, group_size=EXECUTIONS)
    tokens = 0
    for e in range(EXECUTIONS):
        raw = raw_calls(e, shape)
        tokens += len(raw.input_ids) + len(raw.output_ids)
        np.savez(folder / f"{e:03d}.npz", **vars(raw))
    np.savez(folder / "small.npz", **vars(raw_calls(0, SMALL)))
    return tokens


def _measure(name: str, folder: Path) -> dict[str, Any] | str:
    """What the builder's process says, or why it could not."""
    python, env = sys.executable, os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if name in FRAMEWORKS:
        place = os.environ.get("COMPARE_VENV")
        if not place:
            return "COMPARE_VENV names no environment; bench_compare.py tells how one is made"
        python = f"{place}/bin/python"
        del env["PYTHONPATH"]
    command = [python, "-P", str(ROOT / "tests/bench/compare_builders.py"), name, str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _row(name: str, what: str, value: float | None, unit: str) -> dict[str, Any]:
    return {
        "id": f"compare.{name}", "what": what, "value": value, "unit": unit,
        "bound": None, "holds": None, "command": COMMAND,
    }  # fmt: skip


def _verdict(found: dict[str, Any], trie: dict[str, Any]) -> str:
    """What it made, and how that differs from the tree."""
    if found is trie:
        return f"{found['samples']} leaves"
    if found["tree"] is not None:
        same = "the trie's parents and shared lengths" if found["tree"] == trie["tree"] else "ANOTHER TREE"
        return f"{found['samples']} leaves, an output that repeats another is one too; {same}"
    return f"{found['samples']} samples"


def _rows(name: str, label: str, found: dict[str, Any], trie: dict[str, Any], tokens: int) -> Any:
    label += f" ({found['version']})" if found["version"] else ""
    yield _row(name, f"{label}: {_verdict(found, trie)}", tokens / found["seconds"] / 1e6, "Mtoken/s a core")
    yield _row(f"{name}.memory", "the same: memory above the imports", found["bytes"] / 2**20, "MiB")
    yield _row(f"{name}.kept", "tokens it keeps, over the tree's", found["tokens"] / trie["tokens"], "times")


def compare(folder: Path, tokens: int, builders: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows of these builders over the trace in a folder.  What cannot be had has no value, and says why."""
    measured = {name: _measure(name, folder) for name in builders}
    trie = measured["trie"]
    if isinstance(trie, str):
        raise RuntimeError(f"the plain trie did not run: {trie}")
    rows = [
        _row("tokens", "tokens of inputs and outputs of all calls", tokens / 1e6, "Mtoken"),
        _row("tree", "of these not shared", trie["tokens"] / 1e6, "Mtoken"),
    ]
    for name, label in builders.items():
        found = measured[name]
        if isinstance(found, str):
            rows.append(_row(name, f"{label}: not measured: {found}", None, ""))
        else:
            rows += _rows(name, label, found, trie, tokens)
    return rows


def run() -> list[dict[str, Any]]:
    """The rows of the table of benchmarks."""
    with tempfile.TemporaryDirectory() as place:
        return compare(Path(place), _write(Path(place)), OURS | FRAMEWORKS)


if __name__ == "__main__":
    from tests.bench.__main__ import show

    show(run())
