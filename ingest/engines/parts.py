"""A call that engines ended before it was done, gone on from where it stood: its parts as one generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ingest.engines.answer import Generation
from lake.events import VersionSpan


def _experts(parts: Sequence[Generation]) -> tuple[npt.NDArray[np.int16] | None, int]:
    """Rows and the token of the first: each of the part that sampled there, since a later one, which computed
    the same tokens again, may have had other weights.  None where a token has no row.
    """
    start: int | None = None
    end, rows = 0, []
    for part in parts:
        if part.experts is None:  # a later one computes its tokens again
            continue
        if start is None:
            start = end = part.experts_start
        if part.experts_start > end:
            return None, 0
        rows.append(part.experts[end - part.experts_start :])
        end += len(rows[-1])
    last = next((p for p in reversed(parts) if len(p.output_ids)), parts[-1])
    if start is None or last.experts is None:
        return None, 0
    return np.concatenate(rows), start


def nothing(finish_reason: Literal["abort", "length"]) -> Generation:
    """A call that ended before anything was sampled."""
    return Generation(
        output_ids=np.zeros(0, np.int32),
        output_logprobs=np.zeros(0, np.float32),
        finish_reason=finish_reason,
        spans=(),
        cached_tokens=None,
        weight_version=None,
    )


def joined(parts: Sequence[Generation]) -> Generation:
    """The parts (at least one) in the order they were sampled, each after the prompt and those before it.

    Spans tell which version sampled which tokens, of a part without spans by its version; they are empty
    where one part alone has none.  `cached_tokens` are those of the first attempt.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    experts, experts_start = _experts(parts)
    spans: list[VersionSpan] = []
    at = 0
    for part in parts:
        n = len(part.output_ids)
        for span in part.spans or (VersionSpan(part.weight_version, 0, n),):
            if spans and spans[-1].version == span.version:
                spans[-1] = VersionSpan(span.version, spans[-1].start, at + span.end)
            elif span.end > span.start:
                spans.append(VersionSpan(span.version, at + span.start, at + span.end))
        at += n
    return Generation(
        output_ids=np.concatenate([p.output_ids for p in parts]),
        output_logprobs=np.concatenate([p.output_logprobs for p in parts]),
        finish_reason=last.finish_reason,
        spans=tuple(spans),
        cached_tokens=first.cached_tokens,
        weight_version=last.weight_version,
        engine=", ".join(dict.fromkeys(p.engine for p in parts if p.engine)),
        experts=experts,
        experts_start=experts_start,
    )
