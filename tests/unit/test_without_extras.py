"""Without the optional packages: what needs none of them works, what needs one names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import small_lake

BLOCK = (
    "import sys\n"
    "class Blocked:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in ('kafka', 'pandas', 'ray', 's3fs'):\n"
    "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
    "sys.meta_path.insert(0, Blocked())\n"
)


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_worker_on_sqlite_needs_none(tmp_path: Path) -> None:
    code = (
        "import headrace, ingest.commands, ingest.supervise\n"
        "from ingest.worker import Worker, lanes_of\n"
        "from lake.config import Config\n"
        "from lake.log import open_log\n"
        "from lake.store import Store\n"
        f"log = open_log('sqlite://{tmp_path}/log.db')\n"
        f"worker = Worker(log, Store('{tmp_path}/lake'), Config(), lanes_of(log, 0, 1, 10.0))\n"
        "worker.close()\n"
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [["log", "init"], ["log", "status"]])
def test_what_is_missing_is_named(command: list[str], tmp_path: Path) -> None:
    arguments = ["headrace", *command, "kafka://127.0.0.1:1/x"]
    done = run(f"sys.argv = {arguments!r}\nimport headrace\nheadrace.main()\n", tmp_path)
    assert done.returncode == 2
    assert "pip install 'headrace[kafka]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lake_is_read_without_pandas(tmp_path: Path) -> None:
    code = (
        "import headrace\n"
        f"lake = headrace.open({small_lake.make(tmp_path)!r})\n"
        "assert lake.rows('from weights')\n"
        "lake.pandas('weights')\n"
    )
    done = run(code, tmp_path)
    assert "pip install 'headrace[pandas]'" in done.stderr.splitlines()[-1]
