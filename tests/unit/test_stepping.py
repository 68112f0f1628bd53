"""A step: what it states of its groups beside its weights."""

from __future__ import annotations

import pytest

from tests.support.ten_steps import RATE, batch, make
from trainer.loader import GroupData
from trainer.packing import Packed
from trainer.stepping import Step


def group(name: str, packed: Packed) -> GroupData:
    return GroupData(name, f"digest of {name}", (packed,), 1.0, packed.executions_valid, 0, flat=False)


def test_mismatch_is_stated_by_the_staleness_of_groups_and_moves_no_bit() -> None:
    digests = []
    for staleness in ({"a": 1, "b": 0, "c": 1}, {"a": 0, "b": 0, "c": 0}, {}):
        backend = make()
        packs = {name: batch(backend, seed) for seed, name in enumerate("abc")}
        step = Step(backend, RATE)
        for name, packed in packs.items():
            step.add(group(name, packed))
        result = step.close(staleness or {"x": 9})
        lags = {entry["lag"]: entry for entry in result.statistics["by_lag"]}
        digests.append(result.digest)
        if staleness == {"a": 1, "b": 0, "c": 1}:
            assert list(lags) == [0, 1]
            assert lags[0]["targets"] == packs["b"].targets
            assert lags[1]["targets"] == packs["a"].targets + packs["c"].targets
        else:  # a group whose version is unknown is of no number
            assert list(lags) == [0 if staleness else None]
        for name in ("gap", "gap_abs", "gap_large", "kl3"):
            mean = sum(e["targets"] * e[name] for e in lags.values()) / result.targets
            assert result.statistics[name] == pytest.approx(mean, rel=1e-9)
    assert len(set(digests)) == 1
