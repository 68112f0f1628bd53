"""Parts of one call, joined: ids, log-probabilities and spans stay in step."""

from __future__ import annotations

import msgspec
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


def routed(prompt, n, mark, start=0, **other):
    """A part after `prompt` tokens whose rows say which part computed them, and which token it was."""
    rows = np.arange(start, prompt + n - 1)
    experts = np.stack([np.full_like(rows, mark), rows], -1)[:, None].astype(np.int16)
    return msgspec.structs.replace(part(n, 1, **other), experts=experts, experts_start=start)


@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=2, max_size=5), st.integers(0, 5), st.data())
def test_each_token_has_the_row_of_the_part_that_sampled_there(prompt, sizes, start, data):
    start, at, parts, expected = min(start, prompt), prompt, [], []
    for mark, n in enumerate(sizes):
        later = data.draw(st.integers(start, max(start, at - 1))) if mark else start
        parts.append(routed(at, n, mark, later))
        rows = range(max(start, start + len(expected)), at + n - 1)
        expected += [(mark, row) for row in rows]
        at += n
    whole = joined(parts)
    assert whole.experts_start == start
    assert [tuple(row[0]) for row in whole.experts.tolist()] == expected
    assert len(whole.experts) == max(0, prompt + sum(sizes) - 1 - start)


def test_experts_that_are_missing():
    none = part(0, 1)
    assert joined([routed(4, 2, 0), none]).experts.shape == (5, 1, 2)  # it ended before it ran
    assert joined([none, routed(4, 2, 1)]).experts.shape == (5, 1, 2)
    assert joined([part(2, 1), routed(6, 2, 1)]).experts[:, 0, 0].tolist() == [1] * 7
    assert joined([routed(4, 2, 0), part(2, 1)]).experts is None
    assert joined([routed(4, 2, 0), routed(6, 2, 1, start=6)]).experts is None  # token 5 has no row
