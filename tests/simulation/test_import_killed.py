"""An import that is killed anywhere is finished by the same command: the lake is that of a quiet import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.importing.run import import_calls
from tests.support.raw_calls import audit, check_as_matched, contents, group, write_lines

ROWS = [row for name in ("a", "b", "c", "d") for row in group(name, 2)]
SCORES = [{"execution_id": f"{g}/{e}", "score": e} for g in "abcd" for e in range(2)]
IMPORT = """
import sys
from ingest.importing import writing
writing.BATCH_BYTES = 4000
from ingest.importing.run import import_calls
import_calls([sys.argv[1]], sys.argv[2], [sys.argv[3]])
"""
"""With a commit for every few events."""

KILLS = (
    "import.after-dead-letters",
    "import.after-reading",
    "store.before-write",
    "store.after-write",
    "store.before-commit",
    "store.after-commit:2",
    "import.after-calls:2",
    "import.after-executions",
    "import.after-scores",
    "import.after-groups",
    "import.after-calls",
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Raw calls with two rows that are refused, and scores with one."""
    found = [
        write_lines(tmp_path / "calls.jsonl", [*ROWS[:9], b"{}", *ROWS[9:], ROWS[0]]),
        write_lines(tmp_path / "scores.jsonl", [*SCORES, {"execution_id": "nobody"}]),
    ]
    for path in found:
        os.utime(path, (1e9, 1e9))
    return found


def run_import(files: list[Path], lake: Path, kill_at: str = "") -> int:
    calls, scores = map(str, files)
    environment = os.environ | ({"HEADRACE_KILL_AT": kill_at} if kill_at else {})
    command = [sys.executable, "-c", IMPORT, calls, str(lake), scores]
    return subprocess.run(command, check=False, env=environment, capture_output=True).returncode


@pytest.mark.slow
def test_killed_again_and_again_it_comes_to_the_same_lake(files: list[Path], tmp_path: Path) -> None:
    calls, scores = map(str, files)
    import_calls([calls], str(tmp_path / "quiet"), [scores])
    wanted = contents(tmp_path / "quiet")
    for kill_at in KILLS:
        assert run_import(files, tmp_path / "lake", kill_at) == -signal.SIGKILL, kill_at
        for name, rows in contents(tmp_path / "lake").items():  # what is there is the beginning of it
            assert rows == wanted[name][: len(rows)], (kill_at, name)
    assert run_import(files, tmp_path / "lake") == 0
    assert contents(tmp_path / "lake") == wanted
    check_as_matched(tmp_path / "lake", ROWS)
    assert audit(tmp_path / "lake") == {}


def test_what_a_killed_import_left_is_not_mixed_with_other_files(files: list[Path], tmp_path: Path) -> None:
    """The group that it had begun is refused, whole; the others are imported."""
    calls, scores = map(str, files)
    assert run_import(files, tmp_path / "lake", "import.after-calls") == -signal.SIGKILL
    begun = {row["group_id"] for row in contents(tmp_path / "lake")["calls"]}
    assert begun == {"a"}
    other = [row | {"output_ids": [8, 8]} if row["execution_id"] == "a/1" else row for row in ROWS]
    changed = str(write_lines(tmp_path / "other.jsonl", other))
    done = import_calls([changed], str(tmp_path / "lake"), [scores])
    refused = done.written.executions_refused
    assert refused.keys() == {"a/0", "a/1"}
    assert "in the lake with other calls" in refused["a/1"]
    assert refused["a/0"] == "its group was begun by an import of other files: a/1 differs"
    assert done.written.groups == 3
    assert import_calls([calls], str(tmp_path / "lake"), [scores]).written.groups == 1
    check_as_matched(tmp_path / "lake", ROWS)
