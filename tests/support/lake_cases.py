"""Random small lakes for property tests: groups of executions with random call trees."""

from __future__ import annotations

from hypothesis import strategies as st

from lake.events import ROLES
from tests.support.recorder import Recorder

STATUSES = ("completed", "completed", "completed", "harness_timeout", "crashed", "lost")


@st.composite
def trees(draw: st.DrawFn, recorder: Recorder, group: str, name: str, calls_max: int = 7) -> int:
    """Calls of one execution; how many.  Each leaves the tree at any token, at an end, or is a root."""
    owned: dict[int, tuple[int, int]] = {}  # call -> own range in depths
    n_calls = draw(st.integers(0, calls_max))
    for call_id in range(n_calls):
        at = None
        parents = [c for c, (start, end) in owned.items() if end > start]
        if parents and draw(st.integers(0, 5)) > 0:
            parent = draw(st.sampled_from(parents[-3:]))
            start, end = owned[parent]
            at = (parent, end if draw(st.booleans()) else draw(st.integers(start + 1, end)))
        retry = at is not None and draw(st.integers(0, 5)) == 0
        n_context = 0 if retry else draw(st.integers(0, 3))
        n_output = draw(st.integers(0, 4))
        recorder.called(
            group,
            name,
            call_id,
            at=at,
            n_context=n_context,
            n_output=n_output,
            role=draw(st.sampled_from(ROLES)) if draw(st.booleans()) else "main",
            logprobs=draw(st.integers(0, 7)) > 0,
            delivered=draw(st.integers(0, 7)) > 0,
            retry_of=call_id - 1 if retry and call_id else None,
        )
        if draw(st.integers(0, 9)) == 0:
            recorder.undelivered(group, name, call_id)
        shared = at[1] if at else 0
        owned[call_id] = (shared, shared + n_context + n_output)
    return n_calls


@st.composite
def lakes(draw: st.DrawFn) -> Recorder:
    """One to three groups: attempts, lost and unfinished executions, late and repeated scores, duplicates."""
    recorder = Recorder()
    values = st.sampled_from((0.0, 1.0, -1.0, 0.1, 0.7, 1e6))
    for g in range(draw(st.integers(1, 3))):
        group, size = f"g{g}", draw(st.integers(1, 4))
        recorder.dispatched(group, size)
        for index in range(draw(st.integers(0, size)) if draw(st.integers(0, 4)) == 0 else size):
            for attempt in range(1 + (draw(st.integers(0, 4)) == 0)):
                name = f"{group}/{index}.{attempt}"
                recorder.launched(group, name, index, attempt)
                n_calls = draw(trees(recorder, group, name))
                if draw(st.integers(0, 9)) > 0:
                    kept = n_calls if draw(st.integers(0, 5)) else draw(st.integers(0, n_calls))
                    recorder.finished(group, name, kept, draw(st.sampled_from(STATUSES)))
                for version in range(draw(st.sampled_from((0, 1, 1, 1, 1, 2)))):
                    value = draw(values) if draw(st.integers(0, 4)) else None
                    recorder.scored(group, name, value, version=version)
        if draw(st.integers(0, 3)) == 0:
            recorder.ready(group, scores_end=draw(st.integers(0, len(recorder.rows["scores"]))))
    for topic in ("calls", "executions", "scores", "groups"):  # appended again: another offset, same event
        events = [event for _, event in recorder.rows[topic]]
        for event in draw(st.lists(st.sampled_from(events), max_size=2)) if events else ():
            recorder.add(event)
    return recorder
