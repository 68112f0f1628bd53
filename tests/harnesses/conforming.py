"""A client as a test: it is installed, runs, and everything that must hold does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harnesses.checking import check
from tests.harnesses.clients import conform, load
from tests.harnesses.frame import HARNESS_S
from tests.harnesses.install import INSTALL_S, NotInstalled, required
from tests.harnesses.scenario import SLOW_S

TEST_S = INSTALL_S + HARNESS_S + SLOW_S + 240


async def conforms(name: str, folder: Path) -> None:
    """Fails by what does not hold.

    A client that cannot be installed fails in CI, where npm and PyPI are, and is skipped elsewhere.
    """
    try:
        runs = await conform(load(name), folder)
    except NotInstalled as error:
        if required():
            pytest.fail(str(error))
        pytest.skip(str(error))
    faults = {run: found for run, seen in runs.items() if (found := check(seen))}
    assert not faults, faults
