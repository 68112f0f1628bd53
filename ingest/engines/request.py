"""The body of `/generate`, made without a Python integer a token.

A prompt of 200,000 tokens is sent again with every call, so its ids become JSON by one look-up each:
every id has its text of WIDTH bytes, blanks in front, which JSON lets stand before a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

WIDTH = 8  # of a number and its comma: one uint64
ID_MAX = 10 ** (WIDTH - 1) - 1
IDS_FIRST = 1 << 17


def _texts(ids: int) -> npt.NDArray[np.uint64]:
    """The texts of ids 0 to `ids` - 1."""
    numbers = np.arange(ids)
    texts = np.full((ids, WIDTH), ord(","), np.uint8)
    for k in range(WIDTH - 1):
        power = 10**k
        digits = np.where(numbers >= power * (k > 0), ord("0") + numbers // power % 10, ord(" "))
        texts[:, WIDTH - 2 - k] = digits
    return texts.view(np.uint64).ravel()


class IdTexts:
    """Token ids to JSON.  Learns the texts of ids when they first come: 8 bytes each, 1.2 MB for 150,000."""

    def __init__(self) -> None:
        self._texts = _texts(0)

    def json(self, ids: npt.NDArray[np.int32]) -> bytes | memoryview:
        """The JSON array of ids (int32 (n,), n above 0, none negative), but for the bracket that opens it."""
        most = int(np.maximum.reduce(ids))
        if most > ID_MAX:  # no vocabulary is so large
            return msgspec.json.encode(ids.tolist())[1:]
        if most >= len(self._texts):
            self._texts = _texts(min(ID_MAX + 1, max(IDS_FIRST, 1 << (most + 1).bit_length())))
        texts = np.empty(len(ids), np.uint64)
        self._texts.take(ids, out=texts, mode="clip")  # within bounds; "raise" would make a copy
        data = texts.view(np.uint8)
        data[-1] = ord("]")
        return data.data


_id_texts = IdTexts()


def generate_body(
    rid: str,
    input_ids: npt.NDArray[np.int32],
    sampling: dict[str, Any],
    experts_start: int | None = None,
    further: Mapping[str, Any] | None = None,
) -> bytes:
    """What is posted to `/generate`: ids in, ids and log-probabilities wanted; experts, from a token on."""
    wanted = {"rid": rid, "sampling_params": sampling, "return_logprob": True, **(further or {})}
    if experts_start is not None:
        wanted |= {"return_routed_experts": True, "routed_experts_start_len": experts_start}
    rest = msgspec.json.encode(wanted)
    return b"".join((b'{"input_ids":[', _id_texts.json(input_ids), b",", rest[1:]))
