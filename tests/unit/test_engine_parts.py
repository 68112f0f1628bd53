"""Parts of one call, joined: ids, log-probabilities and spans stay in step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingest.engines.answer import Generation
from ingest.engines.parts import joined
from lake.events import VersionSpan


def part(n, version, spans=True, reason="abort", engine="a"):
    return Generation(
        output_ids=np.arange(n, dtype=np.int32) + 10,
        output_logprobs=-np.arange(n, dtype=np.float32),
        finish_reason=reason,
        spans=(VersionSpan(version, 0, n),) if spans else (),
        cached_tokens=n,
        weight_version=version,
        engine=engine,
    )


def test_one_part_is_itself():
    one = part(3, 1)
    assert joined([one]) is one


def test_versions_follow_each_other():
    whole = joined([part(3, 1), part(2, 1, spans=False), part(4, 2, reason="stop", engine="b")])
    assert whole.output_ids.tolist() == [10, 11, 12, 10, 11, 10, 11, 12, 13]
    assert whole.output_logprobs.tolist() == [0, -1, -2, 0, -1, 0, -1, -2, -3]
    assert whole.spans == (VersionSpan(1, 0, 5), VersionSpan(2, 5, 9))
    assert (whole.finish_reason, whole.weight_version, whole.engine) == ("stop", 2, "a, b")
    assert whole.cached_tokens == 3


def test_a_version_that_is_unknown_stays_so():
    assert joined([part(2, None, spans=False), part(1, 4)]).spans == (
        VersionSpan(None, 0, 2),
        VersionSpan(4, 2, 3),
    )


parts = st.lists(
    st.builds(part, st.integers(0, 5), st.none() | st.integers(0, 2), st.booleans()), min_size=1, max_size=5
)


@given(parts)
def test_spans_cover_every_token_once(several):
    whole = joined(several)
    at = 0
    for span in whole.spans:
        assert span.start == at
        at = span.end
    assert not whole.spans or at == len(whole.output_ids) or len(several) == 1
    assert len(whole.output_ids) == len(whole.output_logprobs) == sum(len(p.output_ids) for p in several)
    assert whole.output_ids.dtype == np.int32
