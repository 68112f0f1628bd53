"""Slots of tokens whose keys and values are computed: which hold a prefix, which may be taken.

    EMPTY -> TAKEN (a call runs in it) -> HELD (its tokens stay, for prefixes) -> TAKEN ...
                                             `flush` or an eviction makes it EMPTY

Shapes: S slots, C places of a slot.
"""

from __future__ import annotations

import msgspec
import numpy as np

IN_PLACE_LOSS_MAX = 16  # a held tail up to this long is given up rather than its prefix copied


class Hold(msgspec.Struct, frozen=True):
    """Where a call runs: in `slot`, of which places [0, cached) are right after a copy from `source`."""

    slot: int
    source: int  # equal to `slot` where nothing is to be copied
    cached: int


class Slots:
    """Book-keeping of S slots; computes nothing itself.

    - `take` finds the longest held prefix among all slots, running ones included.
    - A held slot is evicted only when no empty one is left, the longest unused first.
    - A slot whose keys stem from dropped weights is neither reused nor copied from.
    """

    def __init__(self, slots: int, places: int) -> None:
        self.tokens_SC = np.zeros((slots, places), np.int32)
        self.length_S = np.zeros(slots, np.int64)  # places whose keys and values are computed
        self.taken_S = np.zeros(slots, bool)
        self._stale_S = np.zeros(slots, bool)
        self._used_S = np.zeros(slots, np.int64)
        self._clock = 0

    def take(self, prompt: np.ndarray, reuse_max: int) -> Hold | None:
        """A slot for a prompt (int32) with at most `reuse_max` tokens reused; None if all are taken."""
        if self.taken_S.all():
            return None
        best, cached = self._longest(prompt[:reuse_max])
        in_place = cached > 0 and not self.taken_S[best] and self.length_S[best] - cached <= IN_PLACE_LOSS_MAX
        slot = best if in_place else self._victim(best if cached else -1)
        self.taken_S[slot], self._stale_S[slot] = True, False
        self.length_S[slot] = cached
        self.tokens_SC[slot, : len(prompt)] = prompt
        return Hold(slot, best if cached else slot, cached)

    def _longest(self, prefix: np.ndarray) -> tuple[int, int]:
        n = len(prefix)
        if n == 0:
            return -1, 0
        differs = self.tokens_SC[:, :n] != prefix
        same_S = np.where(differs.any(1), differs.argmax(1), n)
        usable_S = np.where(self._stale_S, 0, np.minimum(same_S, self.length_S))
        # among equals one that can be extended where it lies: free, and with the shortest tail
        cost_S = self.length_S + np.where(self.taken_S, self.tokens_SC.shape[1] + 1, 0)
        best = int(np.where(usable_S == usable_S.max(), cost_S, np.iinfo(np.int64).max).argmin())
        return best, int(usable_S[best])

    def _victim(self, spared: int) -> int:
        order = np.where(self.length_S > 0, self._used_S + 1, 0).astype(np.float64)
        order[self.taken_S] = np.inf
        if spared >= 0 and np.isfinite(order).sum() > 1:
            order[spared] = np.inf
        return int(order.argmin())

    def give(self, slot: int) -> None:
        """A call is over: what it computed is held."""
        self._clock += 1
        self.taken_S[slot], self._used_S[slot] = False, self._clock
        if self._stale_S[slot]:
            self.length_S[slot] = 0

    def drop(self, slot: int) -> None:
        """A call leaves, and nothing of it is held."""
        self.give(slot)
        self.length_S[slot] = 0

    def flush(self) -> None:
        """Nothing computed so far serves another call; running calls keep their own."""
        self.length_S[~self.taken_S] = 0
        self._stale_S |= self.taken_S

    @property
    def held_tokens(self) -> int:
        return int(self.length_S.sum())
