"""The wire form is pinned: records written by an earlier version must decode, and encode to the same bytes.

After a deliberate change (with a new SCHEMA_VERSION), write the file anew:
    HEADRACE_GOLDEN=write python -m pytest tests/golden/test_wire.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lake.events import CATALOGUE, Event
from lake.wire import SCHEMA_VERSION, Headers, decode, encode
from tests.support.events import ONE_OF_EACH

FILE = Path(__file__).with_name("wire.json")
BEFORE = Path(__file__).with_name("wire_3.json")  # as version 3 wrote them


def _written(event: Event) -> dict[str, object]:
    headers, value = encode(event)
    return {"schema": headers.schema, "event_id": headers.event_id, "topic": event.TOPIC, "hex": value.hex()}


def test_the_golden_file_has_every_type_of_event() -> None:
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        golden = {event.TYPE: _written(event) for event in ONE_OF_EACH}
        FILE.write_text(json.dumps(golden, indent=1) + "\n")
    assert {event.TYPE for event in ONE_OF_EACH} == set(CATALOGUE) == set(json.loads(FILE.read_text()))


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.TYPE)
def test_the_bytes_of_an_event_are_pinned(event: Event) -> None:
    golden = json.loads(FILE.read_text())[event.TYPE]
    assert _written(event) == golden
    for schema in range(1, SCHEMA_VERSION + 1):  # without claims the bytes of all schemas are the same
        headers = Headers(event.TYPE, schema, golden["event_id"])
        assert decode(headers, bytes.fromhex(golden["hex"])) == event
    assert golden["schema"] == SCHEMA_VERSION


@pytest.mark.parametrize(("kind", "golden"), json.loads(BEFORE.read_text()).items())
def test_what_an_earlier_version_wrote_is_read_and_written_again(kind: str, golden: dict[str, Any]) -> None:
    value = bytes.fromhex(golden["hex"])
    event = decode(Headers(kind, golden["schema"], golden["event_id"]), value)
    assert encode(event) == (Headers(kind, SCHEMA_VERSION, golden["event_id"]), value)
