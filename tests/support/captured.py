"""What captures left in the log of a run, for tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from lake.events import Event, ModelCalled, ids_from_bytes
from lake.layout import Run
from tests.support.running_proxy import read_events


def events_of(run: Path, *topics: str) -> list[Event]:
    """Every event of these topics."""
    with closing(Run(run).open_log()) as log:
        return [event for topic in topics for event in read_events(log, topic)]


def calls_of(run: Path, execution: str = "e-1") -> dict[int, ModelCalled]:
    """The calls of an execution by id."""
    found = [e for e in events_of(run, "calls") if e.execution_id == execution]
    assert [e.call_id for e in found] == list(range(len(found)))
    return {e.call_id: e for e in found}


def whole(calls: dict[int, ModelCalled], call_id: int) -> list[int]:
    """A call's whole sequence, from the events alone."""
    call = calls[call_id]
    shared = [] if call.parent_call_id is None else whole(calls, call.parent_call_id)[: call.shared_len]
    return [*shared, *ids_from_bytes(call.context_ids).tolist(), *ids_from_bytes(call.output_ids).tolist()]
