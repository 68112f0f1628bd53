"""An error of ours is one sentence on the command line, without a traceback."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import headrace


def test_a_log_that_is_none_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"no log of ours" * 1000)
    said = headrace("log", "status", f"sqlite://{tmp_path}/log.db", folder=tmp_path, status=1).stderr
    assert said.startswith("LogCorrupt: ")
    assert "restore it" in said
    assert "Traceback" not in said
