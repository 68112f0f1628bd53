"""Portions: every thing once, in order, as few as the bounds allow from the left."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lake.portions import portions

SIZES = st.lists(st.integers(0, 12), max_size=30)


@given(SIZES, st.integers(1, 20), st.none() | st.integers(1, 5))
def test_portions_are_bounded_and_as_large_as_they_may_be(sizes: list[int], most: int, count: int | None):
    found = list(portions(sizes, int, most, count))
    assert [size for portion in found for size in portion] == sizes
    assert all(found)
    for portion in found:
        assert sum(portion) <= most or len(portion) == 1
        assert count is None or len(portion) <= count
    for before, after in pairwise(found):
        assert sum(before) + after[0] > most or len(before) == count
