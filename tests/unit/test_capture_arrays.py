"""What a capture takes as token ids and log-probabilities, and what it refuses by name."""

from __future__ import annotations

import array
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ingest.capturing.arrays import CaptureError, logprobs_of, spans_of, token_ids
from lake.events import VersionSpan, are_logprobs

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=30)
LOGPROBS = st.lists(st.floats(-(2.0**100), 0, width=32), max_size=30)
ID_FORMS = {
    "list": list,
    "tuple": tuple,
    "int32": lambda v: np.array(v, np.int32),
    "int64": lambda v: np.array(v, np.int64),
    "uint32": lambda v: np.array(v, np.uint32),
    "every second": lambda v: np.repeat(np.array(v, np.int64), 2)[::2],
    "big-endian": lambda v: np.array(v, ">i4"),
    "tensor": lambda v: torch.tensor(v, dtype=torch.int64),
    "array": lambda v: array.array("i", v),
    "bytes": lambda v: np.array(v, "<i4").tobytes(),
    "memoryview": lambda v: memoryview(np.array(v, "<i4").tobytes()),
}
LOGPROB_FORMS = {
    "list": list,
    "float32": lambda v: np.array(v, np.float32),
    "float64": lambda v: np.array(v, np.float64),
    "tensor": lambda v: torch.tensor(v, dtype=torch.float32, requires_grad=True),
    "bytes": lambda v: np.array(v, "<f4").tobytes(),
}


@given(IDS, st.sampled_from(sorted(ID_FORMS)))
def test_ids_come_as_they_are(values, form):
    found = token_ids("input_ids", ID_FORMS[form](values))
    assert found.dtype == np.int32
    assert found.flags.c_contiguous
    assert found.tolist() == values


@given(LOGPROBS, st.sampled_from(sorted(LOGPROB_FORMS)))
def test_logprobs_come_as_they_are(values, form):
    found = logprobs_of("output_logprobs", LOGPROB_FORMS[form](values), len(values))
    assert found.dtype == np.float32
    assert found.tolist() == values
    assert are_logprobs(found)


def test_half_precision_is_taken():
    found = logprobs_of("output_logprobs", torch.tensor([-0.5, -2.0], dtype=torch.bfloat16), 2)
    assert found.tolist() == [-0.5, -2.0]
    assert logprobs_of("output_logprobs", None, 2) is None


def test_buffers_are_not_copied():
    ids = np.arange(10, dtype=np.int32)
    assert np.shares_memory(token_ids("input_ids", ids), ids)
    assert not token_ids("input_ids", ids.tobytes()).flags.writeable


BAD_IDS = {
    "negative": ([3, -1], r"ids\[1\] is -1; token ids run from 0 to 2147483647"),
    "too large": ([3, 2**31], r"ids\[1\] is 2147483648; token ids"),
    "far too large": ([3, 2**70], r"ids\[1\] is 11805916.*token ids"),
    "a float": ([1.0, 2.0], "float64; token ids are whole numbers"),
    "a missing one": ([1, None, 3], r"ids\[1\] is missing; every token has an id"),
    "text": (["1"], r"ids\[0\] is '1'; a number is needed"),
    "a text": ("abc", r"ids"),
    "nested": ([[1, 2]], r"shape \(1, 2\)"),
    "ragged": ([[1], [2, 3]], "ids is no sequence of numbers"),
    "one number": (7, r"shape \(\)"),
    "bool": ([True], "bool; token ids are whole"),
    "half a token": (b"\x00" * 6, "ids has 6 bytes; 4 a token"),
    "none": (None, "ids"),
}


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_that_are_none_are_refused(name):
    values, sentence = BAD_IDS[name]
    with pytest.raises(CaptureError, match=sentence):
        token_ids("ids", values)


BAD_LOGPROBS = {
    "a missing one": ([-0.5, None], r"output_logprobs\[1\] is missing; it is never taken for 0"),
    "too few": ([-0.5], "1 output_logprobs for 2 output_ids"),
    "too many": ([-0.5, -1, -2], "3 output_logprobs for 2 output_ids"),
    "not a number": ([-0.5, math.nan], r"output_logprobs\[1\] is nan"),
    "infinite": ([-math.inf, -1], r"output_logprobs\[0\] is -inf"),
    "too small": ([-0.5, -1e300], r"output_logprobs\[1\] is -1e\+300"),
    "a probability": ([0.5, -1], r"output_logprobs\[0\] is 0.5; .*at most 0"),
    "SGLang's triples": ([[-0.5, 1, "a"], [-1, 2, "b"]], "output_logprobs"),
    "huge whole numbers": ([-(2**70), -1], "object; numbers are needed"),
    "complex": ([1j, 2j], "complex128; numbers are needed"),
    "none at all": ([], "0 output_logprobs for 2 output_ids"),
}


@pytest.mark.parametrize("name", BAD_LOGPROBS)
def test_logprobs_that_are_none_are_refused(name):
    values, sentence = BAD_LOGPROBS[name]
    with pytest.raises(CaptureError, match=sentence):
        logprobs_of("output_logprobs", values, 2)


def test_a_logprob_that_is_missing_is_refused_by_name_and_never_0():
    """Case 31."""
    with pytest.raises(CaptureError, match=r"output_logprobs\[2\] is missing"):
        logprobs_of("output_logprobs", [-0.1, -0.2, None, -0.4], 4)


def test_a_token_without_id_shifts_nothing():
    """Case 32."""
    with pytest.raises(CaptureError, match=r"output_ids\[1\] is missing"):
        token_ids("output_ids", [5, None, 7])
    with pytest.raises(CaptureError, match="3 output_logprobs for 2 output_ids"):
        logprobs_of("output_logprobs", [-0.1, -0.2, -0.3], len(token_ids("output_ids", [5, 7])))


def test_versions_are_spans():
    assert spans_of(None, 3) == ()
    assert spans_of(7, 3) == (VersionSpan(7, 0, 3),)
    assert spans_of(np.int64(7), 0) == (VersionSpan(7, 0, 0),)
    assert spans_of([(2, 0, 1), [None, 1, 3]], 3) == (VersionSpan(2, 0, 1), VersionSpan(None, 1, 3))


BAD_VERSIONS = {
    "text": ("3", "version is '3'"),
    "a float": (3.5, r"version is 3\.5"),
    "a bool": (True, "version is True"),
    "a gap": ([(1, 0, 1), (2, 2, 3)], r"version\[1\] covers tokens 2 to 3, the one before it ends at 1"),
    "backwards": ([(1, 0, 2), (2, 2, 1)], r"version\[1\] covers tokens 2 to 1"),
    "too short": ([(1, 0, 2)], "spans up to token 2, output_ids has 3"),
    "not a triple": ([(1, 0)], r"version\[0\] is \(1, 0\)"),
    "not whole": ([(1, 0.0, 3)], r"version\[0\].*whole numbers"),
}


@pytest.mark.parametrize("name", BAD_VERSIONS)
def test_versions_that_are_none_are_refused(name):
    version, sentence = BAD_VERSIONS[name]
    with pytest.raises(CaptureError, match=sentence):
        spans_of(version, 3)
