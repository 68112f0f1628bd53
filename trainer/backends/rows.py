"""Rows of like length side by side, for a model that takes rectangles.

Legend: B rows of a bucket, T its longest row less one (the last token is never an input), K targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.packing import Ints

LENGTH_RATIO_MAX = 1.25  # a bucket's longest row over its shortest: at most a fifth of it is padding
ROWS_MAX = 64  # above this a bucket no longer gains speed, and its activations leave the cache


class Rows(Protocol):
    """Rows and their targets: a Packed, or what a warm-up has."""

    @property
    def row_start(self) -> Ints: ...  # (R + 1,) offsets into ids
    @property
    def ids(self) -> npt.NDArray[np.int32]: ...
    @property
    def target_row(self) -> npt.NDArray[Any]: ...  # (K,) ascending
    @property
    def target_column(self) -> npt.NDArray[Any]: ...  # (K,) at least 1


@dataclass(frozen=True)
class Bucket:
    """A rectangle of input ids, and the places in it that predict targets."""

    ids_BT: Ints  # int64, zero at the padded ends
    place: Ints  # (k,) flat index into B * T of the token before the target
    token: Ints  # (k,) the target's id
    target: Ints  # (k,) the target's number among the pack's K


def buckets(packed: Rows, length_ratio_max: float = LENGTH_RATIO_MAX) -> Iterator[Bucket]:
    """All rows of the pack, short ones first; a function of the row lengths alone."""
    lengths = np.diff(packed.row_start)
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    edge = np.searchsorted(packed.target_row, np.arange(len(lengths) + 1))
    start = 0
    while start < len(lengths):  # once a bucket
        longest = int(sorted_lengths[start] * length_ratio_max)
        stop = min(int(np.searchsorted(sorted_lengths, longest, "right")), start + ROWS_MAX)
        yield _bucket(packed, order[start:stop], edge)
        start = stop


def _bucket(packed: Rows, rows: npt.NDArray[np.intp], edge: Ints) -> Bucket:
    lengths = (packed.row_start[1:] - packed.row_start[:-1])[rows]
    t = int(lengths.max()) - 1
    columns = np.arange(t)
    inside = columns < (lengths - 1)[:, None]
    at = np.where(inside, packed.row_start[rows][:, None] + columns, 0)
    ids = np.where(inside, packed.ids[at], 0).astype(np.int64)
    count = edge[rows + 1] - edge[rows]
    first = np.cumsum(count) - count
    target = np.repeat(edge[rows] - first, count) + np.arange(int(count.sum()))
    column = packed.target_column[target].astype(np.int64)
    token = packed.ids[packed.row_start[packed.target_row[target]] + column].astype(np.int64)
    return Bucket(ids, np.repeat(np.arange(len(rows)) * t, count) + column - 1, token, target)
