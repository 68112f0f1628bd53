"""One whole demo run, shared by the tests that look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.command import document


class Demo(NamedTuple):
    """A finished run in `folder`/runs/demo, and what `headrace run demo --json` said of it."""

    folder: Path
    said: dict[str, Any]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    return Demo(folder, document("run", "demo", folder=folder))
