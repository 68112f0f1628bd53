"""Every audit: empty on a sound lake, and names the rows where its invariant is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from ingest.derived import OUTPUTS
from ingest.suspects import suspects
from lake import events as ev
from lake.models import Params
from tests.support.recorder import MODELS, Recorder, connect

AUDITS = sorted(m.name for m in MODELS.describe() if m.folder == "audits")


@dataclass
class Lake:
    """A sound lake, to be broken: events, tables, derived tables that lie there instead of the right ones."""

    recorder: Recorder = field(default_factory=Recorder)
    broken: dict[str, Callable[[list[dict]], None]] = field(default_factory=dict)  # derived table -> edit
    params: Params = field(default_factory=Params)
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
        r.ready("g", scores_end=3, tokens=54, targets=18, executions_valid=2)
        r.stepped(0, ["g"], executions=2)
        r.consumed("g", step=0, version=0)

    def run(self) -> dict[str, list[dict]]:
        """audit -> its rows, where it has any.  What keeps a group from being ready looks wrong."""
        events = self.recorder.tables() | self.tables
        with connect(events) as con:
            derived = MODELS.derive(con, OUTPUTS, self.params)
            edited = list(OUTPUTS if self.broken else ())
            for name in edited:
                rows = derived[name].to_pylist()
                self.broken.get(name, as_it_is)(rows)
                key = MODELS.by_name[name].key
                derived[name] = pa.Table.from_pylist(rows, derived[name].schema).sort_by(
                    [(column, "ascending") for column in key]
                )
                con.register(name, derived[name])
            found = MODELS.audit(con, self.params, given=edited)
            held = MODELS.derive(con, ["violations"], self.params, given=edited)["violations"].to_pylist()
        assert sorted(found) == AUDITS
        wrong = suspects(derived, {t: events[f"event_{t}"] for t in ("calls", "executions")}, self.params)
        assert {r["group_id"] for r in held} <= set(wrong)
        assert not wrong or held or self.broken or self.params.roles != Params().roles
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

    found = Lake(broken={"segments": own_twice}).run()
    assert set(found) == {"token_trained_twice", "targets_overlap", "weights_do_not_sum", "paths_disagree"}
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

    found = Lake(broken={"segments": edit}).run()
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


def test_paths_that_are_not_as_they_were_admitted():
    def edit(rows: list[dict]) -> None:
        rows[0]["new_targets"] += 1
        rows[1]["path"] = 3
        rows.remove(rows[2])

    found = Lake(broken={"admitted": edit}).run()
    assert ids(found["paths_disagree"], "execution_id", "path", "reason") == [
        ("g/0", 1, "its segments hold 6 targets, 7 were counted"),
        ("g/0", 2, "it has segments and was not admitted"),
        ("g/0", 3, "it was admitted and has no segments"),
        ("g/1", 1, "it has segments and was not admitted"),
    ]


def test_more_paths_than_are_allowed_and_paths_that_train_nothing():
    lake = Lake()
    with connect(lake.recorder.tables()) as con:
        made = MODELS.derive(con, OUTPUTS, Params(j_max=2))
        for name in OUTPUTS:
            con.register(name, made[name])
        found = MODELS.audit(con, Params(j_max=1), given=OUTPUTS)["paths_disagree"].to_pylist()
    assert ids(found, "execution_id", "path", "reason") == [
        ("g/0", 2, "at most 1 paths are allowed"),
        ("g/1", 2, "at most 1 paths are allowed"),
    ]

    def no_targets(rows: list[dict]) -> None:
        for row in rows:
            row["target"] = row["target"] and (row["execution_id"], row["path"]) != ("g/0", 2)

    found = Lake(broken={"segments": no_targets}).run()["paths_disagree"]
    assert ids(found, "execution_id", "path", "reason") == [("g/0", 2, "it trains nothing")]


def test_a_path_that_is_not_the_way_from_root_to_leaf():
    def edit(rows: list[dict]) -> None:
        rows.remove(next(r for r in rows if (r["execution_id"], r["depth_start"]) == ("g/0", 5)))
        rows.remove(next(r for r in rows if (r["execution_id"], r["path"]) == ("g/1", 1)))
        rows.remove([r for r in rows if (r["execution_id"], r["path"]) == ("g/1", 2)][-1])

    found = Lake(broken={"segments": edit}).run()
    assert ids(found["path_broken"], "execution_id", "path", "depth_start", "reason") == [
        ("g/0", 1, 7, "a segment ends at depth 5, the next begins at 7"),
        ("g/1", 1, 2, "it begins at depth 2"),
        ("g/1", 2, 4, "it does not end at its leaf"),
    ]

    def jump(rows: list[dict]) -> None:
        next(r for r in rows if (r["execution_id"], r["depth_start"]) == ("g/0", 5))["parent_node"] = 2

    found = Lake(broken={"nodes": jump}).run()["path_broken"]
    assert ids(found, "execution_id", "path", "depth_start", "reason") == [
        ("g/0", 1, 5, "the node does not continue the one before")
    ]


def test_a_segment_that_is_not_its_node_and_context_that_is_trained():
    def edit(rows: list[dict]) -> None:
        rows[0]["tree_start"] += 1
        rows[3]["target"] = True
        rows[4]["node"] = 99

    found = Lake(broken={"segments": edit}).run()["segment_not_its_node"]
    assert ids(found, "execution_id", "path", "depth_start", "reason") == [
        ("g/0", 1, 0, "its range is not that of the node"),
        ("g/0", 1, 5, "it is a target and the node is not trainable"),
        ("g/0", 1, 7, "there is no such node"),
    ]


def test_a_tree_that_is_longer_than_its_nodes():
    def edit(rows: list[dict]) -> None:
        rows[0]["token_ids"].append(7)
        rows[2]["logprobs"].pop()

    found = Lake(broken={"trees": edit}).run()
    assert ids(found["tree_not_its_nodes"], "execution_id", "tokens", "node_tokens", "logprobs") == [
        ("g/0", 19, 18, 12),
        ("g/2", 18, 18, 11),
    ]
    assert set(found) == {"tree_not_its_nodes"}


def test_nodes_that_are_not_the_tokens_of_their_call():
    def edit(rows: list[dict]) -> None:
        next(r for r in rows if (r["execution_id"], r["call_id"]) == ("g/1", 3))["depth_end"] -= 1
        rows.remove(next(r for r in rows if (r["execution_id"], r["call_id"]) == ("g/2", 3)))

    found = Lake(broken={"nodes": edit}).run()
    assert ids(found["call_not_its_nodes"], "execution_id", "call_id", "own_tokens", "node_tokens") == [
        ("g/1", 3, 3, 2),
        ("g/2", 3, 3, None),
    ]

    def renumber(rows: list[dict]) -> None:
        rows[0]["call_id"] = 9
        rows[1]["trainable"] = False

    found = Lake(broken={"nodes": renumber}).run()["call_not_its_nodes"]
    assert ids(found, "execution_id", "call_id", "wrong_nodes") == [("g/0", 0, 1), ("g/0", 9, 1)]


def test_a_derived_row_that_is_there_twice():
    found = Lake(broken={name: lambda rows: rows.append(dict(rows[0])) for name in OUTPUTS}).run()
    assert ids(found["derived_twice"], "table_name", "execution_id", "place", "times") == [
        ("admitted", "g/0", 1, 2),
        ("nodes", "g/0", 0, 2),
        ("segments", "g/0", 1 << 32, 2),
        ("trees", "g/0", None, 2),
        ("weights", "g/0", None, 2),
    ]


def test_advantages_that_are_not_relative_to_their_group():
    def shift(rows: list[dict]) -> None:
        for row in rows[:2]:
            row["advantage"] += 0.25
            row["token_weight"] = row["advantage"] / row["n_targets"]

    (row,) = Lake(broken={"weights": shift}).run()["advantages_not_relative"]
    assert (row["group_id"], row["valid"], row["total"]) == ("g", 2, 0.5)

    def flat(rows: list[dict]) -> None:
        rows[1]["value"] = 1.0

    assert set(Lake(broken={"weights": flat}).run()) == {"advantages_not_relative", "score_unknown"}


def test_an_assessment_that_no_evaluator_gave():
    def edit(rows: list[dict]) -> None:
        rows[1]["value"] = 0.5
        rows[2]["assessment"] = "partial"

    found = Lake(broken={"weights": edit}).run()
    assert ids(found["score_unknown"], "execution_id", "assessment", "value") == [
        ("g/1", "scored", 0.5),
        ("g/2", "partial", None),
    ]


def drop_sub_agent(rows: list[dict]) -> None:
    """Of g/0 the second path is not drawn: rows of any derived table."""
    rows[:] = [r for r in rows if (r["execution_id"], r.get("path")) != ("g/0", 2)]
    for row in rows:
        if row["execution_id"] == "g/0" and "n_paths" in row:
            row |= {"n_paths": 1, "n_targets": 6, "token_weight": row["advantage"] / 6}


def test_a_trainable_token_left_out_though_there_was_room():
    broken = dict.fromkeys(("admitted", "segments", "weights"), drop_sub_agent)
    found = Lake(broken=broken).run()
    assert set(found) == {"trainable_left_out", "ready_disagrees"}
    assert ids(found["trainable_left_out"], "execution_id", "call_id", "length", "n_paths") == [
        ("g/0", 2, 3, 1)
    ]
    assert "trainable_left_out" not in Lake(params=Params(j_max=1)).run()
    main = Params(roles=("main",))  # of other roles nothing is drawn
    assert set(Lake(params=main).run()) == {"ready_disagrees"}
    assert "trainable_left_out" in Lake(broken=dict.fromkeys(("admitted", "segments"), list.clear)).run()


def test_a_lower_class_that_was_drawn_while_a_higher_one_had_something_left():
    def swap(rows: list[dict]) -> None:
        for row in rows:
            if row["execution_id"] == "g/0":
                row["path"] = 3 - row["path"]
                if "new_targets" in row:
                    row["new_targets"] = {1: 5, 2: 4}[row["path"]]
                elif row["node"] == 2:  # both paths hold it: the first owns it
                    row["target"] = row["path"] == 1

    found = Lake(broken={"admitted": swap, "segments": swap}).run()
    assert set(found) == {"lower_class_first"}
    assert ids(found["lower_class_first"], "execution_id", "call_id", "class", "drawn_path") == [
        ("g/0", 0, 1, 1),
        ("g/0", 0, 1, 1),
        ("g/0", 1, 1, 1),
    ]
    turned = Params(roles=("sub-agent", "main"))  # then this is the order
    assert set(Lake(params=turned).run()) == set()


def test_a_trained_token_that_leads_nowhere():
    def edit(rows: list[dict]) -> None:
        rows.append({**target(rows, "g/0", 1), "call_id": 77, "path": 9})

    found = Lake(broken={"segments": edit}).run()
    assert ids(found["lineage_broken"], "execution_id", "call_id", "step") == [("g/0", 77, None)]
    found = Lake(broken={"weights": list.clear}).run()
    assert ids(found["lineage_broken"], "group_id", "execution_id", "step") == [("g", None, 0)]


# --------------------------------------------------------------------------------- event tables
def test_a_group_that_was_announced_with_other_numbers():
    lake = Lake()
    del lake.recorder.rows["groups"][1:]
    lake.recorder.consumed("g", step=0, version=0)
    lake.recorder.ready("g", scores_end=3, tokens=54, targets=17, executions_valid=2)
    found = lake.run()
    assert ids(found["ready_disagrees"], "group_id", "announced_targets", "targets") == [("g", 17, 18)]
    assert set(found) == {"ready_disagrees", "consumed_not_ready"}  # it was announced after it was consumed


def test_a_step_that_divided_by_another_number_of_executions():
    lake = Lake()
    lake.recorder.rows["policy"].clear()
    lake.recorder.stepped(0, ["g"], executions=3)
    assert lake.run() == {
        "step_counts_disagree": [{"step": 0, "executions": 3, "executions_derived": 2}],
    }


def test_a_version_that_goes_down_within_a_call():
    lake = Lake()
    spans = (ev.VersionSpan(4, 0, 1), ev.VersionSpan(None, 1, 2), ev.VersionSpan(2, 2, 3))
    lake.recorder.launched("h", "h/0", 0)
    lake.recorder.called("h", "h/0", 0, spans=spans)
    found = lake.run()
    assert ids(found["version_goes_down"], "execution_id", "call_id", "span_start", "version") == [
        ("h/0", 0, 2, 2)
    ]
    assert set(found) == {"version_goes_down"}


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


def test_what_keeps_a_group_from_being_ready_is_every_audit_of_derived_tables_alone():
    of_a_set = {name for name in AUDITS if MODELS.by_name[name].inputs & set(OUTPUTS)}
    beside = {"score_unknown", "lineage_broken", "ready_disagrees", "step_counts_disagree"}
    assert MODELS.by_name["violations"].inputs == of_a_set - beside


def test_every_audit_is_broken_by_a_test_above():
    text = Path(__file__).read_text().split("def test_every_audit")[0]
    assert [name for name in AUDITS if f'["{name}"]' not in text and f'"{name}":' not in text] == []
