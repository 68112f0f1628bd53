"""Delta-coded calls in a temporary file: each execution's own, in order, also of those not yet written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.importing import spool as spool_module
from ingest.importing.spool import NOWHERE, Spool, SpoolFull
from lake.events import ModelCalled, ids_to_bytes


def call(execution: str, number: int) -> ModelCalled:
    ids = np.random.default_rng(number).integers(0, 100, number % 50)
    return ModelCalled(
        time_us=1, group_id="g", execution_id=execution, call_id=number, role="main", parent_call_id=None,
        shared_len=0, context_ids=ids_to_bytes(ids), output_ids=b"", output_logprobs=None,
        relation="restarts",
    )  # fmt: skip


@pytest.mark.parametrize("buffer_bytes", [1, 1000, 1 << 20])
def test_the_calls_of_each_execution_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    monkeypatch.setattr(spool_module, "BUFFER_BYTES", buffer_bytes)
    names = [f"e{n}" for n in np.random.default_rng(0).integers(0, 5, 300)]
    with Spool(str(tmp_path)) as spool:
        last, wanted = dict.fromkeys(names, NOWHERE), {name: list[ModelCalled]() for name in names}
        for number, name in enumerate(names):
            wanted[name].append(call(name, number))
            last[name] = spool.add(wanted[name][-1], last[name])
            if number % 50 == 0:
                assert spool.calls(last[name]) == wanted[name]
        for name, calls in wanted.items():
            assert spool.calls(last[name]) == calls
        assert spool.calls(NOWHERE) == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Spool(str(tmp_path)) as spool:
        last = spool.add(call("e", 9), NOWHERE)
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(
            SpoolFull, match=r"No space left on device.*set TMPDIR to a folder with more space"
        ):
            spool.calls(last)
