"""Captures of one run on two machines: two folders, one log in Kafka."""

from __future__ import annotations

import pytest

import headrace
from tests.support.captured import calls_of, events_of

pytestmark = pytest.mark.kafka


def test_two_folders_share_a_log(tmp_path, kafka_url):
    url = kafka_url()
    here, there = tmp_path / "here" / "run", tmp_path / "there" / "run"
    with headrace.captures(here, log=url) as first, headrace.captures(there, log=url) as second:
        capture = first.open("e-0", group="g-1", size=2, index=0)
        capture.call([1, 2], [3], [-0.5])
        with second.open("e-1", group="g-1", index=1) as other:
            other.call([1, 2], [4], [-0.5])
            other.score(0.0)
        capture.close()
    with headrace.capture(there, "e-0", group="g-1", log=url) as capture:  # it goes on over there
        assert capture.index == 0
        assert capture.call([1, 2, 3, 5], [6], [-0.5]) == 1
        capture.score(1.0)
    assert calls_of(here, "e-0")[1].relation == "extends"
    assert len(calls_of(here, "e-1")) == 1
    assert len(events_of(here, "groups")) == 1
    assert [e.TYPE for e in events_of(there, "policy")] == ["run.started"]
    assert sorted(e.value for e in events_of(here, "scores")) == [0.0, 1.0]
