"""Every client, unmodified, through the proxy: what it sends is restored, and the lake holds what happened.

A client that cannot be installed fails in CI, where npm and PyPI are, and is skipped elsewhere.
"""

from __future__ import annotations

import pytest

from tests.harnesses.checking import check
from tests.harnesses.clients import NAMES, conform, load
from tests.harnesses.frame import HARNESS_S
from tests.harnesses.install import INSTALL_S, NotInstalled, required
from tests.harnesses.scenario import SLOW_S


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + HARNESS_S + SLOW_S + 240)
@pytest.mark.parametrize("name", NAMES)
async def test_a_client_lives_behind_the_proxy(name, tmp_path):
    try:
        runs = await conform(load(name), tmp_path)
    except NotInstalled as error:
        if required():
            pytest.fail(str(error))
        pytest.skip(str(error))
    assert {run: faults for run, seen in runs.items() if (faults := check(seen))} == {}
