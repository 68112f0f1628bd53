"""What is said as `--engine`: read, written, refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.config import ConfigError, Rollout
from lake.engine_address import BadAddress, EngineAddress, parse_engine

PORTS = st.integers(1, 65535)


@given(PORTS, st.none() | st.integers(1, 10_000), st.booleans())
def test_an_address_is_read_as_it_is_written(port, capacity, split) -> None:
    prefill = "http://10.0.0.1:1/under" if split else ""
    address = EngineAddress(f"http://127.0.0.1:{port}", capacity, prefill)
    assert parse_engine(str(address)) == address


def test_what_an_address_says() -> None:
    assert parse_engine(" http://a:1/ ") == ("http://a:1", None, "")
    both = parse_engine("https://a:1#prefill=https://b:2/&capacity=144")
    assert both == ("https://a:1", 144, "https://b:2")
    assert both.servers == ("https://b:2", "https://a:1")
    assert parse_engine("http://a:1").servers == ("http://a:1",)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("127.0.0.1:30000", "is no URL"),
        ("http://a:1?x=1", "is no URL"),
        ("http://a:1#capacity=0", "a whole number of calls from 1"),
        ("http://a:1#capacity=many", "a whole number of calls from 1"),
        ("http://a:1#capacity=1&capacity=2", "each once"),
        ("http://a:1#slots=4", "capacity=N and prefill=URL are known"),
        ("http://a:1#capacity", "capacity=N and prefill=URL are known"),
        ("http://a:1#prefill=b", "is no URL"),
        ("http://a:1#prefill=http://a:1/", "cannot prefill and decode"),
    ],
)
def test_what_cannot_be_is_refused(said, why) -> None:
    with pytest.raises(BadAddress, match=why):
        parse_engine(said)
    with pytest.raises(ConfigError, match=r"rollout\.engines"):
        Rollout(engines=(said,))


def test_one_engine_is_given_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Rollout(engines=("http://a:1", "http://a:1/#capacity=3"))
