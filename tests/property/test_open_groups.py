"""The open groups of a worker: whatever comes in which batches, the rows of a group are there, in bounds."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.open_groups import STATE_TOPICS, OpenGroups, ranges
from lake import events as ev
from lake.log import Record
from lake.tables import to_table
from lake.wire import encode
from tests.support.run_events import finished_group

GROUPS = [finished_group(number, size=2, calls=2) for number in range(4)]


def tables(events: list[ev.Event]) -> dict[str, pa.Table]:
    """The rows of one batch, sorted by group as the event tables give them."""
    by_topic: dict[str, list[tuple[Record, ev.Event]]] = {}
    for offset, event in enumerate(events):
        headers, value = encode(event)
        record = Record(event.TOPIC, 0, offset, event.key, headers, value, event.time_us)
        by_topic.setdefault(event.TOPIC, []).append((record, event))
    return {t: to_table(t, sorted(pairs, key=lambda p: p[1].key)) for t, pairs in by_topic.items()}


@st.composite
def batches(draw: st.DrawFn) -> list[list[ev.Event]]:
    """The events of all groups, interleaved, each group's in their order, cut into batches."""
    left = [list(g) for g in GROUPS]
    order = draw(st.permutations([n for n, g in enumerate(GROUPS) for _ in g]))
    events = [left[n].pop(0) for n in order]
    cuts = sorted(draw(st.sets(st.integers(1, len(events) - 1), max_size=8)))
    return [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


@given(batches(), st.sampled_from([0, 600, 10**9]))
@settings(max_examples=60, deadline=None)
def test_a_group_has_all_of_its_rows_and_tokens_within_the_bound(
    parts: list[list[ev.Event]], bytes_max: int
) -> None:
    groups, candidates = OpenGroups(bytes_max), set()
    for part in parts:
        new = tables(part)
        for topic in STATE_TOPICS:
            if topic in new:
                groups.add(topic, new[topic])
        assert groups.held_bytes <= bytes_max
        candidates |= set(groups.candidates())
    names = [g[0].key for g in GROUPS]
    assert candidates == set(names)  # each was complete at some moment, and nobody was told twice for nothing
    for name, events in zip(names, GROUPS, strict=True):
        for topic in STATE_TOPICS:
            rows = groups.rows(topic, [name])
            assert rows["event_id"].to_pylist() == [e.event_id for e in events if topic == e.TOPIC]
        calls = groups.rows("calls", [name])
        if groups.whole(name):
            wanted = [e.context_ids for e in events if isinstance(e, ev.ModelCalled)]
            assert [ev.ids_to_bytes(ids) for ids in calls["context_ids"].to_pylist()] == wanted
        assert calls["n_context"].to_pylist() == [5] * calls.num_rows
    for name in names:
        groups.close([name])
    assert (groups.held_bytes, len(groups)) == (0, 0)


def test_what_belongs_to_no_open_group_is_not_kept() -> None:
    groups = OpenGroups(10**9)
    late = tables([e for e in GROUPS[0] if not isinstance(e, ev.GroupDispatched)])
    for topic, rows in late.items():
        groups.add(topic, rows)
    assert (len(groups), groups.held_bytes, groups.candidates()) == (0, 0, [])


def test_runs_of_one_group_are_found() -> None:
    rows = pa.table({"group_id": ["a", "a", "c", "b", "b", "a"]})
    assert list(ranges(rows)) == [("a", 0, 2), ("c", 2, 3), ("b", 3, 5), ("a", 5, 6)]
