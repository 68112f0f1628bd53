"""Events become rows: lists, spans and nulls survive, and every event fits the table of its topic."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lake.events import TOPICS, Event, ModelCalled, ids_to_bytes, logprobs_to_bytes
from lake.log import Record
from lake.tables import DEAD_LETTERS, SCHEMAS, to_dead_letters, to_table
from lake.wire import Headers, encode
from tests.support.events import BY, ONE_OF_EACH


def record(event: Event, offset: int = 0) -> Record:
    headers, value = encode(event)
    return Record(event.TOPIC, 2, offset, event.key, headers, value, 1_000 + offset)


def call(number: int, context: list[int], output: list[int], logprobs: list[float] | None) -> ModelCalled:
    return ModelCalled(
        **BY,
        call_id=number,
        role="main",
        parent_call_id=None,
        shared_len=0,
        context_ids=ids_to_bytes(context),
        output_ids=ids_to_bytes(output),
        output_logprobs=None if logprobs is None else logprobs_to_bytes(logprobs),
        relation="restarts",
    )


def test_lists_keep_their_ids_their_nulls_and_their_emptiness() -> None:
    events = [call(0, [5, 6, 7], [1], [-0.5]), call(1, [], [2, 3], None), call(2, [2**31 - 1], [], [])]
    table = to_table("calls", [(record(e, n), e) for n, e in enumerate(events)])
    assert table["context_ids"].to_pylist() == [[5, 6, 7], [], [2**31 - 1]]
    assert table["output_ids"].to_pylist() == [[1], [2, 3], []]
    assert table["output_logprobs"].to_pylist() == [[-0.5], None, []]
    assert table["n_context"].to_pylist() == [3, 0, 1]
    assert table["n_output"].to_pylist() == [1, 2, 0]


def test_log_probabilities_keep_their_bits() -> None:
    values = -np.random.default_rng(7).random(1000, dtype=np.float32)
    event = call(0, [], list(range(1000)), values.tolist())
    column = to_table("calls", [(record(event), event)])["output_logprobs"]
    assert column.type == pa.list_(pa.float32())
    assert column.combine_chunks().values.to_numpy().tobytes() == values.tobytes()


def test_spans_become_structs() -> None:
    (event,) = (e for e in ONE_OF_EACH if isinstance(e, ModelCalled))
    (spans,) = to_table("calls", [(record(event), event)])["spans"].to_pylist()
    assert spans == [{"version": 2, "start": 0, "end": 1}, {"version": None, "start": 1, "end": 3}]


def test_a_row_has_the_fields_of_its_event_and_null_for_those_of_others() -> None:
    for topic in TOPICS:
        events = [e for e in ONE_OF_EACH if topic == e.TOPIC]
        table = to_table(topic, [(record(e, n), e) for n, e in enumerate(events)])
        assert table.schema == SCHEMAS[topic]
        for n, (row, event) in enumerate(zip(table.to_pylist(), events, strict=True)):
            assert (row["event_id"], row["type"]) == (event.event_id, event.TYPE)
            assert (row["log_partition"], row["log_offset"], row["appended_us"]) == (2, n, 1_000 + n)
            own = set(event.__struct_fields__)
            for name in own - {"context_ids", "output_ids", "output_logprobs", "spans"}:
                value = getattr(event, name)
                assert row[name] == (list(value) if isinstance(value, tuple) else value)
            others = {f for e in events for f in e.__struct_fields__} - own
            assert all(row[name] is None for name in others)


def test_no_events_make_an_empty_table_of_the_same_columns() -> None:
    for topic in TOPICS:
        table = to_table(topic, [])
        assert (table.num_rows, table.schema) == (0, SCHEMAS[topic])


def test_a_dead_letter_keeps_the_record_and_the_reason() -> None:
    refused = Record("calls", 1, 9, "g-1", Headers("no.such", 7, "x"), b"\xff\x00", 77)
    table = to_dead_letters([(refused, "unknown event type 'no.such'")])
    assert table.schema == DEAD_LETTERS
    (row,) = table.to_pylist()
    assert (row["topic"], row["log_partition"], row["log_offset"], row["appended_us"]) == ("calls", 1, 9, 77)
    assert (row["key"], row["event_id"], row["type"], row["schema"]) == ("g-1", "x", "no.such", 7)
    assert (row["value"], row["reason"]) == (b"\xff\x00", "unknown event type 'no.such'")
