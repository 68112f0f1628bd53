"""The compiled part of reading raw calls: JSON's text of token ids to int32, without a list of numbers."""

# ruff: noqa: ANN001, ANN202, PLR0917  compiled functions take untyped arrays, by place
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import int64, types

from ingest.matching_kernels import compiled

NOT_A_LIST, NOT_AN_INTEGER, NEGATIVE, TOO_LARGE = -1, -2, -3, -4
SENTENCES = {
    NOT_A_LIST: "is no list of integers",
    NOT_AN_INTEGER: "is no integer",
    NEGATIVE: "is negative",
    TOO_LARGE: "is over 2147483647",
}
ID_MAX = 2**31 - 1
MARK_BYTES, WORDS = 4096, 16
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


class NotIds(ValueError):
    """Text that is no list of token ids: which item, and why."""


@compiled(types.UniTuple(int64, 2)(_BYTES, int64, int64, int64, types.int32[::1], int64[:, ::1]))
def _parse(text, n, at, found, out, marks):
    """Ids of the text of a list into `out`; (how many, or what is wrong; the item where).

    n      the bytes of the text
    at     the place of an id or of the list's end, before which `found` ids are known already
    marks  (M, 2): for every MARK_BYTES the place behind the first comma from there on, and the ids before it
    """
    mark = at // MARK_BYTES + 1
    while at < n and text[at] <= 32:
        at += 1
    if at < n and text[at] == 93 and found == 0:  # ]
        return found, 0
    while at < n:
        while at < n and text[at] <= 32:
            at += 1
        digit = int64(text[at]) - 48 if at < n else int64(-1)
        if digit < 0 or digit > 9:
            return int64(NEGATIVE if at < n and text[at] == 45 else NOT_AN_INTEGER), found
        value = int64(0)
        while 0 <= digit <= 9:
            value = 10 * value + digit
            if value > ID_MAX:
                return int64(TOO_LARGE), found
            at += 1
            digit = int64(text[at]) - 48 if at < n else int64(-1)
        out[found] = value
        while at < n and text[at] <= 32:
            at += 1
        if at == n or (text[at] != 44 and text[at] != 93):
            return int64(NOT_AN_INTEGER), found
        found += 1
        if text[at] == 93:
            return found, 0
        at += 1
        while at >= mark * MARK_BYTES:
            marks[mark, 0], marks[mark, 1] = at, found
            mark += 1
    return int64(NOT_A_LIST), 0


@compiled(int64(int64[::1], int64[::1], int64))
def _same_words(a, b, n):
    """How many of the first n words two arrays have in common, of whole blocks."""
    done = 0
    while done + WORDS <= n:
        x, y = a[done : done + WORDS], b[done : done + WORDS]
        differs = int64(0)
        for k in range(WORDS):
            differs |= x[k] ^ y[k]
        if differs != 0:
            break
        done += WORDS
    return done


class IdParser:
    """Parses lists of ids into a buffer that it keeps; what it returns is gone with the next one.

    A history that is sent again begins with the text of the one before it: that part is compared, at the
    speed of memory, and its ids stand in the buffer already.
    """

    def __init__(self) -> None:
        self._make_room(1024)
        self._size = 0  # of the text whose ids stand in the buffer

    def _make_room(self, size: int) -> None:
        """For a text of so many bytes; what was known of the one before it is forgotten."""
        self._ids = np.empty(size // 2 + 1, np.int32)  # an id takes a digit and a comma at least
        self._words, self._other = np.zeros(size // 8 + 1, np.int64), np.zeros(size // 8 + 1, np.int64)
        self._marks = np.zeros((size // MARK_BYTES + 2, 2), np.int64)
        self._marks[0] = (1, 0)  # behind the bracket
        self._size = 0

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self._ids, self._words, self._other, self._marks))

    def parse(self, text: bytes | memoryview) -> npt.NDArray[np.int32]:
        """Ids (n,) of the text of one JSON value, a list.  Raises NotIds where it is no list of token ids."""
        data = np.frombuffer(text, np.uint8)
        if not len(data) or data[0] != ord("["):
            raise NotIds(SENTENCES[NOT_A_LIST])
        n = len(data)
        if n > 8 * len(self._words):
            self._make_room(2 * n)
        self._words, self._other = self._other, self._words  # aligned, for words to be compared
        own = self._words.view(np.uint8)
        own[:n] = data
        same = 8 * _same_words(self._words, self._other, min(n, self._size) // 8)
        block = same // MARK_BYTES
        while block and self._marks[block, 0] > same:
            block -= 1
        at, known = self._marks[block].tolist()
        found, item = _parse(own, n, at, known, self._ids, self._marks)
        self._size = n if found >= 0 else 0
        if found < 0:
            where = "" if found == NOT_A_LIST else f"item {item} "
            raise NotIds(f"{where}{SENTENCES[found]}")
        return self._ids[:found]
