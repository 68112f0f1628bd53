"""Half surrogate pairs in JSON text are mended, and nothing else is touched."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.proxy.dialects.surrogates import mended


@pytest.mark.parametrize(
    ("sent", "right"),
    [
        (rb'"a\ud83d"', rb'"a\ufffd"'),
        (rb'"\uDE00b"', rb'"\ufffdb"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ud83d\n"', rb'"\ufffd\n"'),
        (rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),  # a backslash that was written out, and letters
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'{"n": 1.50, "b": 12345678901234567890 ,"s":"\ud83d"}',
         rb'{"n": 1.50, "b": 12345678901234567890 ,"s":"\ufffd"}'),
    ],
)  # fmt: skip
def test_half_a_pair_becomes_the_replacement_character(sent, right):
    assert mended(sent) == right
    msgspec.json.decode(mended(sent))


UNITS = st.lists(st.integers(0, 0xFFFF) | st.integers(0xD800, 0xDFFF) | st.just(ord("\\")), max_size=12)


@settings(deadline=None)
@given(UNITS, st.booleans())
def test_it_reads_as_javascript_would_mend_it(units, ascii_only):
    text = b"".join(unit.to_bytes(2, "little") for unit in units).decode("utf-16-le", "surrogatepass")
    body = json.dumps(text, ensure_ascii=True) if ascii_only else json.dumps(text, ensure_ascii=False)
    if not ascii_only:
        body = "".join(f"\\u{ord(c):04x}" if 0xD800 <= ord(c) < 0xE000 else c for c in body)
    right = "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)
    assert msgspec.json.decode(mended(body.encode())) == right


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@settings(deadline=None)
@given(JSON)
def test_text_without_half_pairs_stays_as_it_is(value):
    body = json.dumps(value).encode()
    assert mended(body) == body
