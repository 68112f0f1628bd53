"""Calls at the same time: what one raises does not leave another running."""

from __future__ import annotations

import time

import pytest

from ingest.at_once import AtOnce


def test_all_have_ended_when_one_raised() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            raise ValueError("the first")
        time.sleep(0.05)
        done.append(number)

    at_once = AtOnce(2)
    with pytest.raises(ValueError, match="the first"):
        at_once.each(work, [(n,) for n in range(4)])
    assert sorted(done) == [1, 2, 3]
    at_once.each(work, [(4,)])
    assert done[-1] == 4
