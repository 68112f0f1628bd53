"""Every audit: empty on a sound lake, and names the rows where its invariant is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lake import events as ev
from lake.models import Params
from tests.support.recorder import MODELS, Recorder, connect

AUDITS = sorted(m.name for m in MODELS.describe() if m.folder == "audits")


@dataclass
class Lake:
    """A sound lake, to be broken: events, tables, derived tables that lie there instead of the right ones."""

    recorder: Recorder = field(default_factory=Recorder)
    broken: dict[str, Callable[[list[dict]], None]] = field(default_factory=dict)  # derived table -> edit
    tables: dict[str, pa.Table] = field(default_factory=dict)  # event tables that are not the recorder's

    def __post_init__(self) -> None:
        r = self.recorder
        r.dispatched("g", 3)
        for i, value in enumerate([1.0, 0.0, None]):
            name = f"g/{i}"
            r.launched("g", name, i)
            r.called("g", name, 0)
            r.called("g", name, 1, at=(0, 5))
            r.called("g", name, 2, at=(0, 4), role="sub-agent")
            r.called("g", name, 3, at=(0, 2), n_context=0, retry_of=0, delivered=False)
            r.finished("g", name, 4)
            r.scored("g", name, value)
        r.ready("g", scores_end=3)
        r.stepped(0, ["g"])
        r.consumed("g", step=0, version=0)

    def run(self, *audits: str) -> dict[str, list[dict]]:
        with connect(self.recorder.tables() | self.tables) as con:
            right = MODELS.derive(con, list(self.broken), Params()) if self.broken else {}
            for name, edit in self.broken.items():
                rows = right[name].to_pylist()
                edit(rows)
                con.register(name, pa.Table.from_pylist(rows, right[name].schema))
            found = MODELS.audit(con, Params(), given=list(self.broken))
        assert sorted(found) == AUDITS
        return {name: t.to_pylist() for name, t in found.items() if t.num_rows}


def ids(rows: list[dict], *names: str) -> list[tuple]:
    return [tuple(r[n] for n in names) for r in rows]


def target(rows: list[dict], execution: str, call_id: int) -> dict:
    return next(
        r for r in rows if (r["execution_id"], r["call_id"], r["target"]) == (execution, call_id, True)
    )


def as_it_is(rows: list[dict]) -> None:
    """Lies there unedited, beside an edited one."""


def test_a_sound_lake_breaks_no_audit():
    assert Lake().run() == {}


# -------------------------------------------------------------------------------- derived tables
def test_a_token_trained_twice_and_targets_that_overlap():
    def own_twice(rows: list[dict]) -> None:
        for row in rows:
            row["target"] = row["target"] or (row["execution_id"] == "g/0" and row["sampled"])

    found = Lake(broken={"segments": own_twice, "weights": as_it_is}).run()
    assert set(found) == {"token_trained_twice", "targets_overlap", "weights_do_not_sum"}
    assert ids(found["token_trained_twice"], "execution_id", "path", "call_id", "length") == [
        ("g/0", 2, 0, 2)
    ]
    assert ids(found["targets_overlap"], "execution_id", "path", "other_path", "tokens") == [("g/0", 1, 2, 2)]
    assert ids(found["weights_do_not_sum"], "execution_id", "n_targets", "in_segments") == [("g/0", 9, 11)]


def test_a_range_that_overlaps_without_being_the_same_node():
    def stretch(rows: list[dict]) -> None:
        target(rows, "g/1", 0)["length"] += 1

    found = Lake(broken={"segments": stretch}).run()
    assert ids(found["token_trained_twice"], "execution_id", "call_id", "tree_start") == [("g/1", 0, 4)]
    assert "targets_overlap" not in found  # both ranges are on one path


def test_weights_that_do_not_sum():
    def edit(rows: list[dict]) -> None:
        rows[0]["token_weight"] *= 1 + 1e-9
        rows[1]["advantage"] = rows[1]["token_weight"] = float("nan")
        rows[2]["advantage"] = 0.0

    found = Lake(broken={"weights": edit}).run()
    assert set(found) == {"weights_do_not_sum"}
    assert ids(found["weights_do_not_sum"], "execution_id", "reason") == [
        ("g/0", "weights do not sum to the advantage"),
        ("g/1", "advantage is not a finite number"),
        ("g/2", "validity and advantage disagree"),
    ]


def test_a_target_too_few_and_segments_of_an_unknown_execution():
    def edit(rows: list[dict]) -> None:
        target(rows, "g/1", 1)["target"] = False
        rows.append({**target(rows, "g/0", 1), "execution_id": "g/7"})

    found = Lake(broken={"segments": edit, "weights": as_it_is}).run()
    assert ids(found["weights_do_not_sum"], "execution_id", "n_targets", "in_segments") == [
        ("g/1", 9, 6),
        ("g/7", None, 3),
    ]
    assert ids(found["missing_trained"], "execution_id", "is_current") == [("g/7", None)]


def test_an_undelivered_answer_that_is_trained():
    def train_the_retry(rows: list[dict]) -> None:
        rows.append({**target(rows, "g/0", 1), "call_id": 3, "path": 9, "tree_start": 900})

    found = Lake(broken={"segments": train_the_retry}).run()
    assert ids(found["undelivered_trained"], "execution_id", "path", "call_id") == [("g/0", 9, 3)]


def test_a_missing_assessment_that_is_trained():
    def edit(rows: list[dict]) -> None:
        rows.append({**target(rows, "g/0", 1), "execution_id": "g/2"})

    found = Lake(broken={"segments": edit}).run()
    assert ids(found["missing_trained"], "execution_id", "assessment", "targets") == [("g/2", "missing", 3)]


def test_a_node_without_its_parent():
    def lose_the_root(rows: list[dict]) -> None:
        rows.remove(next(r for r in rows if r["execution_id"] == "g/1" and r["depth_start"] == 0))

    found = Lake(broken={"nodes": lose_the_root}).run()
    assert ids(found["orphan_node"], "execution_id", "call_id", "node") == [
        ("g/1", 0, 2),
        ("g/1", 3, 3 << 32 | 2),
    ]


# --------------------------------------------------------------------------------- event tables
def test_a_call_whose_parent_is_absent_or_does_not_own_the_shared_end():
    lake = Lake()
    lake.recorder.launched("g", "g/9", 9)
    lake.recorder.called("g", "g/9", 1, at=(0, 5))
    lake.recorder.called("g", "g/9", 2, at=(1, 11))
    lake.recorder.called("g", "g/9", 3, at=(2, 11))  # token 10 is not call 2's own
    found = lake.run()
    assert ids(found["orphan_node"], "execution_id", "call_id", "reason") == [
        ("g/9", 1, "parent call 0 is not in the lake"),
        ("g/9", 2, "parent call 1 owns tokens 5 to 10, not the one before 11"),
        ("g/9", 3, "parent call 2 owns tokens 11 to 16, not the one before 11"),
    ]


def test_a_group_consumed_twice():
    lake = Lake()
    lake.recorder.put(ev.GroupConsumed, group_id="g", step=1, policy_version=1)
    assert ids(lake.run()["group_consumed_twice"], "group_id", "steps") == [("g", [0, 1])]
    planned = Lake()
    planned.recorder.stepped(1, ["g"])  # by the plan of a committed step
    assert ids(planned.run()["group_consumed_twice"], "group_id", "steps") == [("g", [0, 1])]


def test_a_consumed_group_that_was_never_ready():
    lake = Lake()
    lake.recorder.dispatched("h", 1)
    lake.recorder.consumed("h", step=1, version=1)
    assert lake.run() == {"consumed_not_ready": [{"group_id": "h", "step": 1}]}


def test_an_event_that_is_there_twice():
    lake = Lake()
    lake.recorder.add(lake.recorder.rows["scores"][1][1])
    lake.recorder.add(lake.recorder.rows["calls"][2][1])
    assert ids(lake.run()["event_twice"], "table_name", "event_id", "times") == [
        ("event_calls", "g/0:2", 2),
        ("event_scores", "g/1:scored:task:0", 2),
    ]


def test_calls_of_a_consumed_group_that_are_not_there():
    lake = Lake()
    del lake.recorder.rows["calls"][6]
    assert ids(lake.run()["calls_missing_in_consumed"], "execution_id", "calls", "arrived") == [("g/1", 4, 3)]


def test_counts_that_are_not_the_lengths_of_the_lists():
    lake = Lake()
    calls = lake.recorder.tables()["event_calls"]
    counts = calls["n_output"].to_pylist()
    counts[5] += 1
    at = calls.schema.get_field_index("n_output")
    lake.tables = {"event_calls": calls.set_column(at, calls.schema.field(at), pa.array(counts, pa.int32()))}
    (row,) = lake.run()["lengths_disagree"]
    assert (row["execution_id"], row["call_id"], row["n_output"], row["output_ids"]) == ("g/1", 1, 4, 3)


def test_every_audit_is_broken_by_a_test_above():
    text = Path(__file__).read_text().split("def test_every_audit")[0]
    assert [name for name in AUDITS if f'["{name}"]' not in text and f'"{name}":' not in text] == []
