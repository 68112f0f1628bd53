"""Rows of like length side by side, for a model that takes rectangles.

Legend: B rows of a bucket, T its longest row less one (the last token is never an input), K targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.packing import Ints, Packed

LENGTH_RATIO_MAX = 1.25  # a bucket's longest row over its shortest: at most a fifth of it is padding
ROWS_MAX = 64  # above this a bucket no longer gains speed, and its activations leave the cache


@dataclass(frozen=True)
class Bucket:
    """A rectangle of input ids, and the places in it that predict targets."""

    ids_BT: Ints  # int64, zero at the padded ends
    place: Ints  # (k,) flat index into B * T of the token before the target
    token: Ints  # (k,) the target's id
    target: Ints  # (k,) the target's number among the pack's K


def buckets(packed: Packed) -> Iterator[Bucket]:
    """All rows of the pack, short ones first; a function of the row lengths alone."""
    lengths = packed.row_lengths
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    edge = np.searchsorted(packed.target_row, np.arange(packed.rows + 1))
    start = 0
    while start < packed.rows:  # once a bucket
        longest = int(sorted_lengths[start] * LENGTH_RATIO_MAX)
        stop = min(int(np.searchsorted(sorted_lengths, longest, "right")), start + ROWS_MAX)
        yield _bucket(packed, order[start:stop], edge)
        start = stop


def _bucket(packed: Packed, rows: npt.NDArray[np.intp], edge: Ints) -> Bucket:
    lengths = packed.row_lengths[rows]
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
