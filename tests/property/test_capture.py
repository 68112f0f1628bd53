"""Any calls, and any interruptions between them: the log reconstructs each, as if there had been none."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from tests.support.captured import calls_of, whole

TOKENS = st.lists(st.integers(0, 2), max_size=6)
CALLS = st.lists(
    st.tuples(TOKENS, TOKENS, st.booleans(), st.sampled_from(["new", "after the last", "the last again"])),
    min_size=1,
    max_size=8,
)


def captured(run, calls, interrupted):
    """The whole sequences of the calls; `interrupted[k]`: the capture is let go of after call k."""
    said, last = [], ([], [])
    capture = headrace.capture(run, "e-1")
    for (ids, output, delivered, kind), again in zip(calls, interrupted, strict=True):
        start = {"new": [], "after the last": [*last[0], *last[1]], "the last again": last[0]}[kind]
        prompt = [*start, *ids] or [0]
        capture.call(prompt, output, [-0.5] * len(output), delivered=delivered, started_us=1, finished_us=2)
        said.append([*prompt, *output])
        last = (prompt, output)
        if again:
            capture.close()
            capture = headrace.capture(run, "e-1")
    capture.close()
    return said


@settings(max_examples=25, deadline=None)
@given(CALLS, st.data())
def test_each_call_reconstructs_however_often_the_capture_was_interrupted(calls, data):
    cuts = data.draw(st.lists(st.booleans(), min_size=len(calls), max_size=len(calls)))
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for name, interrupted in (("a", [False] * len(calls)), ("b", cuts)):
            run = Path(folder) / name
            said = captured(run, calls, interrupted)
            events = calls_of(run)
            assert [whole(events, k) for k in events] == said
            made.append(list(events.values()))
        assert made[0] == made[1]
        for call in made[0]:
            parent = None if call.parent_call_id is None else made[0][call.parent_call_id]
            if parent is not None and not parent.delivered:
                assert call.shared_len <= parent.shared_len + parent.n_context
