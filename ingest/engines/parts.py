"""A call that engines ended before it was done, gone on from where it stood: its parts as one generation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingest.engines.answer import Generation
from lake.events import VersionSpan


def joined(parts: Sequence[Generation]) -> Generation:
    """The parts (at least one) in the order they were sampled, each after the prompt and those before it.

    Spans tell which version sampled which tokens, of a part without spans by its version; they are empty
    where one part alone has none.  `cached_tokens` are those of the first attempt.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
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
    )
