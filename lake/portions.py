"""Things in their order, in portions of bounded size: what is read, derived or written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Thing = TypeVar("Thing")


def portions(
    things: Iterable[Thing], size_of: Callable[[Thing], int], most: int, count: int | None = None
) -> Iterator[list[Thing]]:
    """Portions of at most `most` in size (one that is larger is alone), and of at most `count` things."""
    portion: list[Thing] = []
    held = 0
    for thing in things:
        own = size_of(thing)
        if portion and (held + own > most or len(portion) == count):
            yield portion
            portion, held = [], 0
        portion.append(thing)
        held += own
    if portion:
        yield portion
