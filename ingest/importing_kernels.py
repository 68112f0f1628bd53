"""The compiled part of reading raw calls: JSON's text of token ids to int32, without a list of numbers."""

# ruff: noqa: ANN001, ANN202  compiled functions take untyped arrays
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
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


class NotIds(ValueError):
    """Text that is no list of token ids: which item, and why."""


@compiled(types.UniTuple(int64, 2)(_BYTES, int64, int64, types.int32[::1]))
def _parse(text, at, found, out):
    """Ids of the text of a list into `out`; (how many, or what is wrong; the item where).

    `at`: the place of an id or of the list's end, before which `found` ids are known already.
    """
    n = len(text)
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
    return int64(NOT_A_LIST), 0


class IdParser:
    """Parses lists of ids into a buffer that it keeps; what it returns is gone with the next one.

    A history that is sent again begins with the text of the one before it: that part is compared, at the
    speed of memory, and its ids stand in the buffer already.
    """

    def __init__(self) -> None:
        self._ids: npt.NDArray[np.int32] = np.empty(1024, np.int32)
        self._text: npt.NDArray[np.uint8] = np.empty(0, np.uint8)  # of the ids in the buffer

    def parse(self, text: bytes | memoryview) -> npt.NDArray[np.int32]:
        """Ids (n,) of the text of one JSON value, a list.  Raises NotIds where it is no list of token ids."""
        data = np.frombuffer(text, np.uint8)
        start = 0
        while start < len(data) and data[start] <= 32:
            start += 1
        if start == len(data) or data[start] != ord("["):
            raise NotIds(SENTENCES[NOT_A_LIST])
        data = data[start:]
        at, known = self._known(data)
        if len(data) > 2 * len(self._ids):  # an id takes a digit and a comma at least
            longer = np.empty(len(data), np.int32)
            longer[:known] = self._ids[:known]
            self._ids = longer
        found, item = _parse(data, at, known, self._ids)
        if found < 0:
            self._text = self._text[:0]
            where = "" if found == NOT_A_LIST else f"item {item} "
            raise NotIds(f"{where}{SENTENCES[found]}")
        self._text = data  # it holds the line
        return self._ids[:found]

    def _known(self, data: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """(place behind the last comma that the text shares with the one before it, ids up to there)."""
        n = min(len(data), len(self._text))
        differs = data[:n] != self._text[:n]
        first = int(differs.argmax()) if n else 0
        same = first if n and differs[first] else n
        commas = data[:same] == ord(",")
        count = int(np.count_nonzero(commas))
        return (same - int(commas[::-1].argmax()), count) if count else (1, 0)
