"""Ten steps on a fixed tiny batch against the losses stored beside this file.

Written by `python -m tests.support.ten_steps 10`; the weights digest is compared on one machine only
(tests/unit/test_torch_backend.py), the losses everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support.ten_steps import batch, make, steps


def test_ten_losses_are_the_stored_ones():
    stored = json.loads((Path(__file__).parent / "losses.json").read_text())
    backend = make()
    now = steps(backend, batch(backend), 0, 10)
    np.testing.assert_allclose(now["losses"], stored["losses"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(now["norms"], stored["norms"], rtol=1e-4)
