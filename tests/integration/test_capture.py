"""headrace.capture: the same events as the proxy's, checked by the same rules, in a real log."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import headrace
from ingest.capturing.appending import CaptureLost
from ingest.capturing.arrays import CaptureError
from lake.config import ConfigError
from lake.events import EventError, VersionSpan, logprobs_from_bytes
from lake.layout import Run
from lake.log import LogUnavailable
from tests.support.captured import calls_of, events_of, whole

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    return tmp_path / "runs" / "mine"


def scores(run, execution="e-1"):
    return [
        (e.assessment, e.value, e.version) for e in events_of(run, "scores") if e.execution_id == execution
    ]


def ended(run, execution="e-1"):
    found = [e for e in events_of(run, "executions") if e.execution_id == execution]
    return [(e.status, e.calls) for e in found if e.TYPE == "execution.finished"]


def test_an_execution_from_its_start_to_its_score(run):
    task = {"id": "fix-7", "prompt": "Fix it"}
    with headrace.capture(run, "e-1", group="g-1", size=2, task=task, version=3, engine="mine") as capture:
        first = capture.call(
            [1, 2, 3], [4, 5], [-0.5, -1.0], temperature=0.7, sampling={"top_p": 0.9},
            started_us=10, finished_us=20, cached_tokens=2,
        )  # fmt: skip
        tool = capture.tool("bash", '{ "command":"ls" }', "a.py", call_id=first, status="ok")
        second = capture.call([1, 2, 3, 4, 5, 6], [7], np.array([-0.25]), version=[(3, 0, 1)])
        third = capture.call([1, 2, 9], [8], None, role="sub-agent", version=4, finish_reason="length")
        capture.score(0.5, detail="half of it")
    assert (first, second, third, tool) == (0, 1, 2, "call_000000_00")

    calls = calls_of(run)
    assert [whole(calls, k) for k in calls] == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 8]]
    assert [(c.parent_call_id, c.shared_len, c.relation) for c in calls.values()] == [
        (None, 0, "restarts"),
        (0, 5, "extends"),
        (0, 2, "branches"),
    ]
    assert calls[2].difference == "token 2 differs from call 0"
    assert [c.role for c in calls.values()] == ["main", "main", "sub-agent"]
    assert [c.spans for c in calls.values()] == [
        (VersionSpan(3, 0, 2),),
        (VersionSpan(3, 0, 1),),
        (VersionSpan(4, 0, 1),),
    ]
    assert logprobs_from_bytes(calls[0].output_logprobs).tolist() == [-0.5, -1.0]
    assert calls[2].output_logprobs is None
    assert (calls[0].temperature, calls[0].sampling, calls[0].cached_tokens) == (0.7, '{"top_p":0.9}', 2)
    assert (calls[0].started_us, calls[0].finished_us, calls[0].engine) == (10, 20, "mine")
    assert calls[2].finish_reason == "length"

    (tool_called,) = events_of(run, "tools")
    assert (tool_called.arguments, tool_called.result) == (b'{ "command":"ls" }', b"a.py")
    assert (tool_called.call_id, tool_called.name, tool_called.status) == (0, "bash", "ok")
    (dispatched,) = events_of(run, "groups")
    assert (dispatched.size, json.loads(dispatched.task), dispatched.boundary) == (2, task, -1)
    assert dispatched.policy_version == 3
    launched = events_of(run, "executions")[0]
    assert (launched.TYPE, launched.index, launched.group_id) == ("execution.launched", 0, "g-1")
    assert ended(run) == [("completed", 3)]
    assert scores(run) == [("scored", 0.5, 0)]
    assert [e.TYPE for e in events_of(run, "policy")] == ["run.started"]


def test_an_exception_is_a_crash_without_a_score(run):
    def crash():
        with headrace.capture(run, "e-1") as capture:
            capture.call([1], [2], [-0.1])
            capture.score(1.0)
            raise RuntimeError("the tests did not start")

    with pytest.raises(RuntimeError, match="did not start"):
        crash()
    assert ended(run) == [("crashed", 1)]
    assert scores(run) == [("scored", 1.0, 0), ("missing", None, 1)]
    assert events_of(run, "executions")[-1].detail == "RuntimeError: the tests did not start"


def test_without_a_score_it_is_missing_and_other_ends_have_names(run):
    with headrace.captures(run) as captures:
        with captures.open("e-1"):
            pass
        with captures.open("e-2") as capture:
            capture.call([1], [2], [-0.1])
            capture.finish("harness_timeout", "after 60 s")
            capture.finish("completed")
            capture.score(0.25, partial=True)
            with pytest.raises(CaptureError, match=r"e-2 has ended \(harness_timeout\)"):
                capture.call([1], [2], [-0.1])
        with captures.open("e-3") as capture:
            capture.finish("overall_timeout")
            with pytest.raises(CaptureError, match="ended with overall_timeout: it has no score"):
                capture.score(1.0)
            with pytest.raises(CaptureError, match="status is 'lost', not one of completed"):
                capture.finish("lost")
    assert ended(run) == [("completed", 0)]
    assert scores(run) == [("missing", None, 0)]
    assert (ended(run, "e-2"), scores(run, "e-2")) == ([("harness_timeout", 1)], [("partial", 0.25, 0)])
    assert (ended(run, "e-3"), scores(run, "e-3")) == ([("overall_timeout", 0)], [("missing", None, 0)])


def test_an_interrupt_ends_nothing_and_the_execution_goes_on(run):
    def interrupted():
        with headrace.capture(run, "e-1", group="g-1", size=3) as capture:
            capture.call([1, 2], [3], [-0.1])
            capture.call([1, 2], [4], [-0.1], delivered=False)
            capture.tool("bash", "{}", "", call_id=0)
            capture.score(0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended(run) == []
    with headrace.capture(run, "e-1", group="g-1") as capture:
        assert (capture.calls, capture.index) == (2, 0)
        assert capture.call([1, 2, 3, 5], [6], [-0.1]) == 2
        assert capture.call([1, 2, 4, 5], [6], [-0.1], retry_of=1) == 3
        assert capture.tool("bash", "{}", "", call_id=0) == "call_000000_01"
        capture.score(1.0)
    calls = calls_of(run)
    assert (calls[2].parent_call_id, calls[2].shared_len, calls[2].relation) == (0, 3, "extends")
    # Nothing extends an answer that nobody got.
    assert (calls[3].parent_call_id, calls[3].shared_len, calls[3].retry_of) == (0, 2, 1)
    assert scores(run) == [("scored", 0.5, 0), ("scored", 1.0, 1)]
    assert ended(run) == [("completed", 4)]
    with pytest.raises(CaptureError, match=r"execution e-1 has ended \(completed, 4 calls\); give another"):
        headrace.capture(run, "e-1", group="g-1")


CHILD = """
import sys, headrace
with headrace.capture(sys.argv[1], "e-1") as capture:
    for k in range(1000):
        capture.call(list(range(k + 1)), [k + 1], [-0.5])
        print(k, flush=True)
"""


def test_a_killed_process_loses_no_acknowledged_call(run):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(run)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with child:
        for line in child.stdout:
            if int(line) == 20:
                child.send_signal(signal.SIGKILL)
    with headrace.capture(run, "e-1") as capture:
        kept = capture.calls
        assert kept >= 21
        capture.call([*range(kept + 1), 7], [8], [-0.5])
    calls = calls_of(run)
    assert len(calls) == kept + 1
    assert all(c.relation == "extends" and c.parent_call_id == k - 1 for k, c in calls.items() if k)


def test_one_at_a_time(run):
    with headrace.capture(run, "e-1", group="g-1", size=2) as capture:
        with pytest.raises(CaptureError, match="e-1 is captured by another process or thread"):
            headrace.capture(run, "e-1", group="g-1")
        capture.call([1], [2], [-0.1])
        with headrace.capture(run, "e-2", group="g-1") as other:
            assert other.index == 1
    assert list((run / "captures").iterdir()) == []


def test_what_cannot_be_is_refused_and_changes_nothing(run):
    with headrace.capture(run, "e-1", group="g-1", size=2, task="t") as capture:
        capture.call([1, 2], [3], [-0.1])
        for arguments, sentence in (
            (([], [3], [-0.1]), "input_ids is empty"),
            (([1], [3, 4], [-0.1]), "1 output_logprobs for 2 output_ids"),
            (([1], [3], [None]), r"output_logprobs\[0\] is missing"),
            (([1], [None], [-0.1]), r"output_ids\[0\] is missing"),
            (([1, -2], [3], [-0.1]), r"input_ids\[1\] is -2"),
        ):
            with pytest.raises(CaptureError, match=sentence):
                capture.call(*arguments)
        for options, sentence in (
            ({"role": "critic"}, "role is 'critic', not one of main"),
            ({"version": [(1, 0, 2)]}, "spans up to token 2"),
            ({"retry_of": 1}, "retry_of is 1; this execution has 1 calls"),
            ({"temperature": float("nan")}, "temperature is nan"),
            ({"started_us": 9, "finished_us": 8}, "started_us is 9, finished_us 8"),
            ({"sampling": {"x": object()}}, "sampling is not JSON"),
            ({"finish_reason": None}, "a field cannot be written"),
            ({"engine": "\ud800"}, "a field cannot be written"),
            ({"cached_tokens": 2**70}, "a field cannot be written"),
        ):
            with pytest.raises((CaptureError, EventError), match=sentence):
                capture.call([1, 2], [3], [-0.1], **options)
        with pytest.raises(CaptureError, match="call_id is 7; this execution has 1 calls"):
            capture.tool("bash", "{}", "", call_id=7)
        with pytest.raises(CaptureError, match="status is 'fine', not one of ok"):
            capture.tool("bash", "{}", "", status="fine")
        capture.tool("bash", "{}", "", tool_call_id="mine")
        with pytest.raises(CaptureError, match="tool call mine is recorded already"):
            capture.tool("bash", "{}", "", tool_call_id="mine")
        for value in (float("nan"), float("inf"), "1", True, 10**400):
            with pytest.raises(CaptureError, match=r"score is .*; a finite number"):
                capture.score(value)
        assert capture.call([1, 2, 3, 4], [5], [-0.1]) == 1
    assert len(calls_of(run)) == 2


def test_executions_and_groups_that_cannot_be(run, tmp_path):
    with headrace.captures(run) as captures:
        captures.open("e-1", group="g-1", size=2, task="t", index=1).close()
        for name, options, sentence in (
            ("a/b", {}, "execution is 'a/b'; 1 to 200 letters"),
            ("e-9", {"group": ""}, "group is ''"),
            ("e-9", {"role": "x"}, "role is 'x'"),
            ("e-9", {"size": 0}, "size is 0; a group has at least 1"),
            ("e-9", {"task": object()}, "task is not JSON"),
            ("e-9", {"group": "g-1", "size": 3}, "group g-1 has 2 executions, not 3"),
            ("e-9", {"group": "g-1", "task": "u"}, 'group g-1 is of another task, "t"'),
            ("e-9", {"group": "g-1", "index": 1}, "1 are launched, place 1 is not free"),
            ("e-9", {"group": "g-1", "index": 2}, "place 2 is not free"),
            ("e-1", {"group": "g-2"}, "execution e-1 is of group g-1, not g-2"),
        ):
            with pytest.raises(CaptureError, match=sentence):
                captures.open(name, **options)
        with captures.open("e-2", group="g-1", size=2, task="t") as capture:
            assert capture.index == 0
        with pytest.raises(CaptureError, match="2 are launched, no place is free"):
            captures.open("e-3", group="g-1")
        with pytest.raises(CaptureError, match="is for a run's folder"):
            headrace.capture(captures, "e-4", log="sqlite:///x")
    with pytest.raises(CaptureError, match=r"has the log sqlite://.*leave log="):
        headrace.captures(run, log="sqlite:///elsewhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="is not a run"):
        headrace.captures(tmp_path / "other")


def test_threads_share_the_log_and_the_tree_stays_one(run):
    with headrace.captures(run) as captures, captures.open("e-1") as capture:
        barrier = threading.Barrier(8)

        def work(thread):
            barrier.wait(20)
            prompt = [1, 2, thread]
            for k in range(25):
                call = capture.call(prompt, [100 + k], [-0.5])
                capture.tool("t", "{}", str(k), call_id=call)
                prompt = [*prompt, 100 + k, 7]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    calls = calls_of(run)
    assert len(calls) == 200
    chains = {}
    for k in calls:
        chains.setdefault(whole(calls, k)[2], []).append(len(whole(calls, k)))
    assert all(sorted(c) == [4 + 2 * k for k in range(25)] for c in chains.values())
    assert sum(c.relation == "extends" for c in calls.values()) == 8 * 24
    assert len(events_of(run, "tools")) == 200


def test_many_processes_begin_a_run_together(run):
    code = (
        "import sys, headrace\n"
        "with headrace.capture(sys.argv[1], sys.argv[2], group='g-1', size=4) as capture:\n"
        "    capture.call([1, 2], [3], [-0.5]); capture.score(1)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(run), f"e-{k}"], cwd=ROOT) for k in range(4)
    ]
    assert [child.wait(120) for child in children] == [0, 0, 0, 0]
    launched = [e for e in events_of(run, "executions") if e.TYPE == "execution.launched"]
    assert sorted(e.index for e in launched) == [0, 1, 2, 3]
    assert len(events_of(run, "groups")) == 1
    assert not (run / "log.db-journal").exists()


class Away:
    """A log that does not answer from one append on, until it does again."""

    def __init__(self, log, after):
        self._log, self.left = log, after

    def __getattr__(self, name):
        return getattr(self._log, name)

    def append(self, events):
        self.left -= 1
        if self.left < 0:
            raise LogUnavailable("the disk is full")
        return self._log.append(events)


def test_a_log_that_is_away_too_long_takes_nothing_more_and_the_next_capture_goes_on(run, monkeypatch):
    opened = Run.open_log
    with monkeypatch.context() as patched:
        patched.setattr(Run, "open_log", lambda self, config=None: Away(opened(self, config), 3))
        captures = headrace.captures(run)
        captures._appender._patience_s = 0.2
        capture = captures.open("e-1")
        capture.call([1], [2], [-0.1])
        with pytest.raises(CaptureLost, match="the disk is full"):
            capture.call([1, 2, 3], [4], [-0.1])
        captures._appender._log.left = 100
        with pytest.raises(CaptureLost, match="open the capture anew"):
            capture.call([1, 2, 3, 4, 5], [6], [-0.1])
        capture.close()
        captures.close()
    with headrace.capture(run, "e-1") as capture:
        assert capture.call([1, 2, 3], [4], [-0.1]) == 1
    assert len(calls_of(run)) == 2


class Interrupted(Away):
    """A log during whose append Ctrl-C is pressed, once."""

    def append(self, events):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self._log.append(events)


def test_an_interrupt_within_a_call_leaves_nobody_waiting(run, monkeypatch):
    opened = Run.open_log
    with monkeypatch.context() as patched:
        patched.setattr(Run, "open_log", lambda self, config=None: Interrupted(opened(self, config), 3))
        captures = headrace.captures(run)
    capture = captures.open("e-1")
    with pytest.raises(KeyboardInterrupt):
        capture.call([1], [2], [-0.1])
    for _ in range(2):
        with pytest.raises((CaptureLost, CaptureError), match=r"open (it|the capture) anew"):
            capture.call([1, 2, 3], [4], [-0.1])
    captures.close()
    assert list((run / "captures").iterdir()) == []
    with headrace.capture(run, "e-1") as capture:
        assert capture.call([1], [2], [-0.1]) == 0


async def test_in_an_event_loop(run):
    capture = await asyncio.to_thread(headrace.capture, run, "e-1")
    async with capture:
        asked = [asyncio.to_thread(capture.call, [1, k], [9], [-0.5]) for k in range(10)]
        assert sorted(await asyncio.gather(*asked)) == list(range(10))
        await asyncio.to_thread(capture.score, 1.0)
    assert ended(run) == [("completed", 10)]


SGLANG = {
    "text": "hi",
    "output_ids": [7, 8],
    "meta_info": {
        "finish_reason": {"type": "length", "length": 2},
        "cached_tokens": 2,
        "weight_version": "5",
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
    },
}


def test_an_answer_of_sglang_is_a_call(run):
    with headrace.capture(run, "e-1", version=1) as capture:
        call, said = capture.sglang([1, 2], json.dumps(SGLANG))
        assert (call, said.output_ids.tolist()) == (0, [7, 8])
        spans = {
            "weight_versions": [
                {"version": "5", "start": 0, "end": 1},
                {"version": "6", "start": 1, "end": 2},
            ]
        }
        body = json.dumps(SGLANG | {"meta_info": SGLANG["meta_info"] | spans}).encode()
        capture.sglang([1, 2, 7, 8, 3], body, role="sub-agent")
        unknown = {k: v for k, v in SGLANG["meta_info"].items() if k != "weight_version"}
        capture.sglang([1], json.dumps(SGLANG | {"meta_info": unknown}))
        for wrong, sentence in (
            ([[None, 7, None], [-0.25, 8, None]], "output token 0 .id 7. has log-probability None"),
            ([[-0.5, 7, None]], "1 entries for 2 output ids"),
            ([[-0.5, None, None], [-0.25, 8, None]], "its log-probability is of id None"),
        ):
            meta = SGLANG["meta_info"] | {"output_token_logprobs": wrong}
            with pytest.raises(CaptureError, match=sentence):
                capture.sglang([1], json.dumps(SGLANG | {"meta_info": meta}))
        with pytest.raises(CaptureError, match="does not decode"):
            capture.sglang([1], b"<html>")
    calls = calls_of(run)
    assert [(c.finish_reason, c.cached_tokens) for c in calls.values()] == [("length", 2)] * 3
    assert [c.spans for c in calls.values()] == [
        (VersionSpan(5, 0, 2),),
        (VersionSpan(5, 0, 1), VersionSpan(6, 1, 2)),
        (VersionSpan(1, 0, 2),),
    ]
    assert calls[1].relation == "extends"
