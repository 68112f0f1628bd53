"""A small lake with something for every question: a run whose times, engines, tools and steps are made up."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from ingest.importing.run import import_calls
from ingest.rederive import derive_set, fresh_lake
from lake import events as ev
from lake.config import Admission
from lake.log import open_log
from lake.store import Store
from lake.tables import SCHEMAS
from lake.wire import SCHEMA_VERSION, Headers
from tests.support.recorder import Recorder

GROUPS = ("a", "b", "flat", "waiting", "running")
BY_LAG = [
    {"lag": lag, "targets": 20, "gap": 0.01 * lag, "gap_abs": 0.02 * lag, "gap_large": 0.0, "kl3": 1e-3}
    | {"gap_abs_max": 0.04 * lag, "gap_counts": {"0.02": 19, "inf": 1}}
    for lag in (0, 1)
]
STATED = {"waited_s": 0.5, "seconds": 2.0, "clip_rate_up": 0.1, "cap_rate_up": 0.0, "by_lag": BY_LAG}


def _execution(recorder: Recorder, group: str, index: int, at: float, score: float | None) -> None:
    """Three calls (a sub-agent's, an undelivered one and its retry among them), a tool call, a score."""
    name = f"{group}/{index}"
    recorder.at(at).launched(group, name, index)
    for call_id in range(4):
        began = at + 0.5 + 0.1 * call_id
        recorder.called(
            group,
            name,
            call_id,
            at=None if call_id in (0, 3) else (0, 5),
            role="sub-agent" if call_id == 3 else "main",
            delivered=call_id != 1,
            retry_of=1 if call_id == 2 else None,
            spans=(ev.VersionSpan(0, 0, 1), ev.VersionSpan(1, 1, 3)),
            engine="http://engine",
            cached_tokens=2,
            started_us=round(began * 1e6),
            finished_us=round((began + 0.05) * 1e6),
        )
    recorder.put(
        ev.ToolCalled,
        group_id=group,
        execution_id=name,
        tool_call_id="t",
        call_id=0,
        name="bash",
        arguments=b"{}",
        result=b"error: none",
        started_us=round(at * 1e6),
        stopped_us=round((at + 0.2) * 1e6),
        status="unknown",
    )
    recorder.at(at + 2).finished(group, name, 4)
    recorder.scored(group, name, score)


def recorded() -> Recorder:
    """Groups a and b trained in two steps, `flat` with equal scores, one that waits and one that runs."""
    recorder = Recorder()
    config = {
        "rollout": {"harness": "made-up", "harness_timeout_s": 10, "phi": 0.5, "mu": 1, "groups_per_step": 1}
    }
    recorder.at(1).started(json.dumps(config))
    recorder.put(ev.PolicyPublished, policy_version=0, boundary=0, weights="w", digest="d")
    for number, group in enumerate(GROUPS):
        recorder.at(2 + number).dispatched(group, 2)
        for index in range(1 if group == "running" else 2):
            score = 1.0 if group == "flat" else None if group == "waiting" and index else float(index)
            _execution(recorder, group, index, 3 + number + index, score)
    for step, group in enumerate(("a", "b", "flat")):
        recorder.at(20 + 3 * step).ready(group, 10)
        recorder.at(21 + 3 * step).put(ev.GroupClaimed, group_id=group, step=step, claimed_by="t")
        recorder.at(22 + 3 * step).stepped(step, [group], json.dumps(STATED))
        recorder.consumed(group, step, step)
    recorder.at(40).ready("waiting", 10)
    return recorder


def write(recorder: Recorder, folder: Path, *, damaged: int = 0) -> Path:
    """The lake of these events, made by way of a log, and its default set; `damaged` records among them."""
    with closing(open_log(f"sqlite://{folder / 'log.db'}")) as log:
        for topic in ev.TOPICS:
            log.append([event for _, event in recorder.rows[topic]])
        for number in range(damaged):
            log.append_raw("calls", "a", Headers("model.called", SCHEMA_VERSION, f"x:{number}"), b"\xc1")
        store = fresh_lake(log, folder / "lake", lambda _sentence: None)
    done = sorted({e.group_id for _, e in recorder.rows["groups"] if isinstance(e, ev.GroupReady)})
    if done:
        derive_set(store, Admission(), "default", done, lambda _sentence: None)
    return folder / "lake"


def asked_lake(folder: Path) -> Path:
    """A lake on which every question has an answer."""
    return write(recorded(), folder, damaged=1)


def imported_lake(folder: Path) -> Path:
    """Two groups of two executions, brought in by the import of raw calls: no run, policy, tools or times."""
    calls, scores = folder / "calls.jsonl", folder / "scores.jsonl"
    rows, values = [], []
    for group, found in (("a", (0.0, 1.0)), ("b", (0.5, 0.5))):
        for index, score in enumerate(found):
            ids = {"group_id": group, "execution_id": f"{group}/{index}"}
            history = [1, 2, 3]
            for call_id in range(3):
                output = [10 * call_id + index, 7]
                more = {"output_logprobs": [-0.5, -0.25], "version": 2} if index else {}
                rows.append(ids | {"call_id": call_id, "input_ids": history, "output_ids": output} | more)
                history = [*history, *output, 4] if call_id == 0 else [1, 2, 5]
            values.append(ids | {"score": score, "status": "completed"})
    for path, lines in ((calls, rows), (scores, values)):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_calls([str(calls)], str(folder / "lake"), [str(scores)])
    return folder / "lake"


def empty_lake(folder: Path) -> Path:
    """Tables without a row."""
    store = Store(str(folder / "lake"))
    for topic, schema in SCHEMAS.items():
        store.table(f"events/{topic}", schema)
    return folder / "lake"
