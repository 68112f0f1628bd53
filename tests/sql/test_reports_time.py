"""Reports about time: one small run, with every second worked out by hand."""

from __future__ import annotations

import json

import pytest

from lake import events as ev
from tests.support.recorder import Recorder, derive, rows


def claimed(recorder: Recorder, group: str, step: int) -> None:
    recorder.put(ev.GroupClaimed, group_id=group, step=step, claimed_by="t")


def published(recorder: Recorder, version: int) -> None:
    recorder.put(ev.PolicyPublished, policy_version=version, boundary=version, weights="w", digest="d")


def group(recorder: Recorder, name: str, at: float, ends: list[tuple[float, str]], scored: float) -> None:
    """Dispatched at `at`, launched 2 s later, ended after so many seconds with a status, scored then."""
    recorder.at(at).dispatched(name, len(ends))
    for index, _ in enumerate(ends):
        recorder.at(at + 2).launched(name, f"{name}/{index}", index)
    for index, (seconds, status) in enumerate(ends):
        recorder.at(at + 2 + seconds).finished(name, f"{name}/{index}", 0, status)
    for index, _ in enumerate(ends):
        recorder.at(scored).scored(name, f"{name}/{index}", float(index))


def run() -> Recorder:
    """Group a: dispatched 10, ready 20, taken 21; b: dispatched 10, ready 25, taken 30; c: ready 40, waits;
    d runs.  Step 0 from 10 (weights published) to 35, step 1 not committed.  The last event is at 50.
    """
    recorder = Recorder()
    recorder.at(5).started(json.dumps({"rollout": {"harness": "h", "harness_timeout_s": 20}}))
    published(recorder.at(10), 0)
    group(recorder, "a", 10, [(4, "completed"), (5, "completed")], scored=18)
    recorder.at(20).ready("a", 2)
    group(recorder, "b", 10, [(1, "completed"), (10, "harness_timeout")], scored=23)
    recorder.at(25).ready("b", 4)
    recorder.at(26).scored("b", "b/0", 9.0, version=1)  # too late to count
    claimed(recorder.at(21), "a", 0)
    claimed(recorder.at(30), "b", 0)
    recorder.at(35).stepped(0, ["a", "b"], json.dumps({"waited_s": 12.5, "seconds": 22.5}))
    recorder.consumed("a", 0, 0)
    recorder.consumed("b", 0, 0)
    group(recorder, "c", 30, [(3, "completed")], scored=36)
    recorder.at(40).ready("c", 7)
    recorder.at(41).dispatched("d", 3)
    recorder.launched("d", "d/0", 0)
    recorder.at(50).finished("d", "d/0", 0)
    return recorder


def test_groups_wait_for_the_trainer_and_some_still_do() -> None:
    done, waiting = rows(run(), "queue_age")
    assert (done["step"], done["groups"], done["groups_unknown"]) == (0, 2, 0)
    assert (done["age_p50_s"], done["age_max_s"], done["oldest_group"]) == (3.0, 5.0, "b")
    assert (waiting["step"], waiting["groups"], waiting["age_max_s"]) == (None, 1, 10.0)


def test_what_a_group_takes_until_it_is_ready() -> None:
    a, b, c = rows(run(), "time_to_ready")
    names = ("total_s", "queued_s", "running_s", "scoring_s", "deriving_s")
    # events of one moment are a microsecond apart
    assert [a[n] for n in names] == pytest.approx([10, 2, 5, 1, 2], abs=1e-5)
    assert [b[n] for n in names] == pytest.approx([15, 2, 10, 1, 2], abs=1e-5)
    assert [c[n] for n in names] == pytest.approx([10, 2, 3, 1, 4], abs=1e-5)
    assert (a["last_execution"], b["last_execution"]) == ("a/1", "b/1")


def test_the_longest_execution_of_each_query_and_its_share_of_the_timeout() -> None:
    found = {r["group_id"]: r for r in rows(run(), "longest_execution")}
    b = found["b"]
    assert (b["longest_execution"], b["status"], b["timed_out"], b["executions"]) == (
        "b/1",
        "harness_timeout",
        1,
        2,
    )
    assert (b["longest_s"], b["p50_s"], b["timeout_s"], b["share"]) == (10.0, 5.5, 20.0, 0.5)
    assert (found["a"]["share"], found["a"]["timed_out"]) == (0.25, 0)
    assert found["d"]["executions"] == 1
    silent = run()
    silent.rows["policy"].pop(0)  # no settings: the share is unknown, the rest is not
    assert [(r["share"], r["timeout_s"]) for r in rows(silent, "longest_execution")] == [(None, None)] * 4


def test_what_holds_each_group_back_now() -> None:
    recorder = run()
    claimed(recorder.at(45), "c", 1)
    recorder.whole("e", [1.0])
    found = {r["group_id"]: r for r in rows(recorder, "waiting_for")}
    assert {name: (r["state"], r["waiting_for"]) for name, r in found.items()} == {
        "c": ("CLAIMED", "step 1 to be committed"),
        "d": ("DISPATCHED", "2 of 3 executions not launched; 1 of 3 executions not assessed"),
        "e": ("DISPATCHED", "to be made ready: it is complete"),
    }
    assert found["d"]["since_dispatch_s"] == 9.0
    assert [r["waiting_for"] for r in rows(run(), "waiting_for") if r["group_id"] == "c"] == [
        "the trainer to take it"
    ]


def test_how_long_the_trainer_waited() -> None:
    recorder = run()
    recorder.at(45).stepped(1, [], "not json")
    first, second = rows(recorder, "trainer_idle")
    assert first["seconds"] == pytest.approx(25, abs=1e-5)
    assert (first["waited_s"], first["computed_s"]) == (12.5, 10.0)
    assert first["share"] == pytest.approx(0.5, abs=1e-6)
    assert first["until_first_s"] == 11.0
    assert second["seconds"] == pytest.approx(10, abs=1e-5)
    assert [second[n] for n in ("waited_s", "share", "computed_s", "until_first_s")] == [None] * 4


def test_how_much_of_its_time_a_cell_is_idle() -> None:
    """Cell x lives 100..110, 105..120 and 130..140: 30 of 40 s; calls 102..104, 103..108 and 130..134."""
    recorder = Recorder()
    recorder.dispatched("g", 4)
    for index, (began, ended, cell) in enumerate(
        [(100, 110, "x"), (105, 120, "x"), (130, 140, "x"), (7, 0, "")]
    ):
        recorder.at(began).put(
            ev.ExecutionLaunched, group_id="g", execution_id=f"g/{index}", index=index, attempt=0, cell=cell
        )
        if ended:
            recorder.at(ended).finished("g", f"g/{index}", 1)
    for index, call_id, began, ended in [(0, 0, 102, 104), (0, 1, 103, 108), (2, 0, 130, 134), (2, 1, 0, 0)]:
        times = {"started_us": int(began * 1e6), "finished_us": int(ended * 1e6)}
        recorder.at(10).called("g", f"g/{index}", call_id, **times)
    x, unnamed = rows(recorder, "cell_idle")
    assert (x["cell"], x["executions"], x["seconds"]) == ("x", 3, 40.0)
    assert (x["live_s"], x["calling_s"], x["share"]) == (30.0, 10.0, 0.75)
    assert (x["executions_at_once"], x["calls_at_once"]) == (35 / 40, 11 / 40)
    # one that still runs does so until the last event
    assert (unnamed["cell"], unnamed["live_s"], unnamed["share"]) == (None, 133.0, 1.0)


def test_what_gets_done_over_time() -> None:
    """61 s in stretches of 2: calls that end at 0.5, 1 and 60, a group ready at 30 and consumed at 61."""
    recorder = Recorder()
    recorder.at(1000).dispatched("g", 1)
    for call_id, ended in enumerate([1000.5, 1001, 1060]):
        times = {"started_us": 1, "finished_us": int(ended * 1e6)}
        recorder.at(1001).called("g", "g/0", call_id, n_context=4, n_output=6, **times)
    recorder.called("g", "g/0", 3)  # knows no time: in no row
    recorder.at(1030).ready("g", 0)
    recorder.at(1061).consumed("g", 0, 0)
    found = rows(recorder, "throughput")
    assert [r["from_s"] for r in found] == [2.0 * n for n in range(31)]
    assert found[-1]["seconds"] == 1.0
    first = found[0]
    assert (first["calls"], first["calls_per_s"], first["sampled_per_s"], first["prompt_per_s"]) == (
        2,
        1.0,
        6.0,
        4.0,
    )
    assert found[15]["groups_ready_per_h"] == 1800.0
    assert found[30]["groups_consumed_per_h"] == 3600.0
    assert sum(r["calls"] for r in found) == 3


def test_rates_are_over_at_most_fifty_stretches() -> None:
    for seconds in (1, 49, 51, 3600, 86_400 * 30):
        recorder = Recorder()
        recorder.at(10).dispatched("g", 1)
        recorder.at(11).called("g", "g/0", 0, started_us=1, finished_us=10_500_000)
        recorder.at(10 + seconds).ready("g", 0)
        assert 1 <= len(rows(recorder, "throughput")) <= 50, seconds


def test_the_clock_of_a_lake_is_its_first_and_last_event() -> None:
    found = derive(run(), "clock")["clock"].to_pylist()
    assert found == [{"first_us": 5_000_000, "last_us": 50_000_000}]
