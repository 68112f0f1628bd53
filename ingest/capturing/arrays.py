"""Token ids and log-probabilities as callers have them, to arrays; what cannot be trusted is refused.

Lists, tuples, numpy arrays, torch tensors (of any device and float type), `array.array`, and bytes: ids as
little-endian int32, log-probabilities as little-endian float32.  Buffers are looked at, never walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.matching import Ids
from lake.events import VersionSpan

LOGPROB_MAX = 1e-3
"""A log-probability of 1 may come out a little above 0."""
ID_END = 2**31
SHOWN = 80


class CaptureError(ValueError):
    """What was given cannot be captured: what it is, the bound, what to do."""


def _array(name: str, values: Any, in_bytes: str) -> npt.NDArray[Any]:
    """A vector.  Raises CaptureError for what is none, and for a vector of objects, by place."""
    if isinstance(values, bytes | bytearray | memoryview):
        if len(memoryview(values).cast("B")) % 4:
            raise CaptureError(f"{name} has {len(values)} bytes; 4 a token are needed ({in_bytes})")
        return np.frombuffer(values, in_bytes)
    if hasattr(values, "detach"):  # a torch tensor, which numpy does not take from every device
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.float()  # bfloat16 is no type of numpy's
        values = values.numpy()
    try:
        found = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise CaptureError(f"{name} is no sequence of numbers: {error}") from error
    if found.ndim != 1:
        raise CaptureError(f"{name} has the shape {found.shape}; one sequence (n,) of one call is needed")
    if found.dtype.kind in "OUS":
        numbers = (int, float, np.integer, np.floating)
        for place, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, numbers):
                raise CaptureError(_missing(name, place, value))
    return found  # of objects only where whole numbers have over 64 bits


def _missing(name: str, place: int, value: Any) -> str:
    """Why a list of ids or log-probabilities is refused for what stands at a place."""
    if value is not None:
        return f"{name}[{place}] is {repr(value)[:SHOWN]}; a number is needed"
    if name == "output_logprobs":
        return (
            f"{name}[{place}] is missing; it is never taken for 0: give each as sampled, or None for all "
            "of them, and the call is recorded and never trained"
        )
    return f"{name}[{place}] is missing; every token has an id, or its log-probability is another's"


def token_ids(name: str, values: Any) -> Ids:
    """Ids, int32 (n,).  Raises CaptureError for floats, missing ones, and ids outside [0, 2**31)."""
    found = _array(name, values, "<i4")
    if not found.size:
        return np.zeros(0, np.int32)
    if found.dtype.kind not in "iuO":
        raise CaptureError(f"{name} is of type {found.dtype}; token ids are whole numbers")
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= ID_END:
        place = int(np.argmax((found < 0) | (found >= ID_END)))
        raise CaptureError(f"{name}[{place}] is {int(found[place])}; token ids run from 0 to {ID_END - 1}")
    return np.ascontiguousarray(found, np.int32)


def logprobs_of(name: str, values: Any, tokens: int) -> npt.NDArray[np.float32] | None:
    """Log-probabilities, float32 (tokens,); None where none are given at all.

    Raises CaptureError where one is missing, not finite, or above 0, or there are not as many as tokens:
    lists never shift against each other.
    """
    if values is None:
        return None
    found = _array(name, values, "<f4")
    if found.size and found.dtype.kind not in "iuf":
        raise CaptureError(f"{name} is of type {found.dtype}; numbers are needed")
    if len(found) != tokens:
        raise CaptureError(
            f"{len(found)} {name} for {tokens} output_ids; one each is needed, of the token that was "
            "sampled, or None for all of them"
        )
    with np.errstate(over="ignore"):  # what is too small for float32 becomes infinite, and is found below
        small = np.ascontiguousarray(found, np.float32)
    bad = ~(np.isfinite(small) & (small <= LOGPROB_MAX))
    if bad.any():
        place = int(bad.argmax())
        raise CaptureError(
            f"{name}[{place}] is {found[place]}; the log-probability of a sampled token is finite and at "
            "most 0"
        )
    return small


def spans_of(version: Any, tokens: int) -> tuple[VersionSpan, ...]:
    """Which policy version sampled which output tokens: None (unknown), a version, or (version, start, end)s.

    Raises CaptureError where spans leave a gap or overlap.
    """
    if version is None:
        return ()
    if isinstance(version, int | np.integer) and not isinstance(version, bool):
        return (VersionSpan(int(version), 0, tokens),)
    if not isinstance(version, Sequence) or isinstance(version, str | bytes):
        raise CaptureError(
            f"version is {repr(version)[:SHOWN]}; a whole number is needed, None, or a list of "
            "(version, first token, end)"
        )
    spans, at = [], 0
    for number, span in enumerate(version):
        try:
            sampled_by, start, end = span
            if not all(
                isinstance(v, int | np.integer) for v in (0 if sampled_by is None else sampled_by, start, end)
            ):
                raise TypeError("whole numbers are needed")
        except (TypeError, ValueError) as error:
            raise CaptureError(
                f"version[{number}] is {repr(span)[:SHOWN]}; (version, first token, end) is needed: {error}"
            ) from error
        if start != at or end < start:
            raise CaptureError(
                f"version[{number}] covers tokens {start} to {end}, the one before it ends at {at}; spans "
                "follow each other from 0 on"
            )
        spans.append(VersionSpan(None if sampled_by is None else int(sampled_by), int(start), int(end)))
        at = int(end)
    if spans and at != tokens:
        raise CaptureError(
            f"version has spans up to token {at}, output_ids has {tokens}; cover each token once"
        )
    return tuple(spans)
