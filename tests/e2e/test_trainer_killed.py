"""The trainer killed at each of its named failure points, in one run, which then ends in the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import SHORT, check_whole, document, headrace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
POINTS = (
    "trainer.mid-step:5",
    "trainer.after-plan:1",
    "trainer.after-optimizer:1",
    "trainer.during-checkpoint:1",
    "trainer.after-checkpoint:1",
    "trainer.after-commit:1",
    "trainer.while-paused:1",
    "trainer.during-publication:1",
)


def test_the_trainer_killed_at_every_named_point(tmp_path: Path) -> None:
    arguments: tuple[str, ...] = ("demo", *SHORT, "--run", "runs/demo")
    for point in POINTS:
        done = headrace("run", *arguments, folder=tmp_path, status=1, environment={"HEADRACE_KILL_AT": point})
        assert "trainer was killed by SIGKILL" in done.stderr, point
        arguments = ("runs/demo",)
    assert document("run", "runs/demo", folder=tmp_path)["steps"] == 9
    check_whole(tmp_path, "runs/demo", 9)
