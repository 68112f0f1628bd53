"""Harnesses and SDKs from PyPI, unmodified behind the proxy: what each is expected to do."""

from __future__ import annotations

import pytest

from tests.harnesses.clients import NAMES
from tests.harnesses.conforming import TEST_S, conforms
from tests.harnesses.install import PACKAGES


@pytest.mark.slow
@pytest.mark.timeout(TEST_S)
@pytest.mark.parametrize("name", [n for n in NAMES if PACKAGES[n].python])
async def test_a_python_client_lives_behind_the_proxy(name, tmp_path):
    await conforms(name, tmp_path)
