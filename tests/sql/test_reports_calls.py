"""Reports about calls and tools: drift, caches, retries, cost, lineage; figures worked out by hand."""

from __future__ import annotations

import pytest

from ingest.proxy.rendering import Renderer
from lake import events as ev
from tests.support.driven_execution import Driven, call_text, result, system, user
from tests.support.recorder import Recorder, rows
from tests.support.tiny_model import TEMPLATE, make_tokenizer

TOKENIZER = make_tokenizer()
RENDERER = Renderer(TOKENIZER, TEMPLATE, {}, [TOKENIZER.token_to_id("<|im_end|>")])


def spans(*parts: tuple[int | None, int, int]) -> tuple[ev.VersionSpan, ...]:
    return tuple(ev.VersionSpan(*p) for p in parts)


def causes(driven: Driven, recorder: Recorder) -> list[tuple[str, str | None]]:
    """Relation and cause of the last call that the proxy recorded."""
    seen = len(recorder.rows["calls"])
    recorder.add(driven.event)
    assert len(recorder.rows["calls"]) == seen + 1
    alone = Recorder()
    alone.rows["calls"] = recorder.rows["calls"][-1:]
    return [(r["relation"], r["cause"]) for r in rows(alone, "drift")]


def test_each_difference_that_the_proxy_records_has_its_cause() -> None:
    driven, recorder = Driven(RENDERER), Recorder()
    first = driven.ask([system("s"), user("u")], "one")
    assert causes(driven, recorder) == [("restarts", "new conversation")]
    driven.ask([system("s"), user("u"), first, user("v")], call_text("{}"))
    assert causes(driven, recorder) == [("extends", None)]
    asked = [
        ([system("t"), user("u")], "system prompt edited"),
        ([system("s"), user("w")], "user message edited"),
        ([system("s"), user("u")], "asked the same again"),
        ([system("s"), user("u"), first | {"content": "two"}, user("v")], "answer edited"),
        ([system("s"), user("u"), user("v")], "answer dropped"),
    ]
    for messages, cause in asked:
        driven.ask(messages, "x")
        ((relation, found),) = causes(driven, recorder)
        assert (relation in ("branches", "restarts"), found) == (True, cause), driven.event.difference
    (whole,) = [r for r in rows(recorder, "drift") if r["cause"] == "user message edited"]
    assert (whole["calls"], whole["executions"], whole["example_call"]) == (1, 1, 3)
    assert whole["share"] == 1 / 7
    assert whole["example_difference"].startswith("message 1 (user): text differs")


def test_tool_calls_that_come_back_otherwise_have_causes_too() -> None:
    driven, recorder = Driven(RENDERER), Recorder()
    answer = driven.ask([user("u")], call_text('{"a": 1}'))
    (call,) = answer["tool_calls"]
    rewritten = {**call, "function": {**call["function"], "arguments": '{"a":1}'}}
    driven.ask([user("u"), answer | {"tool_calls": [rewritten]}, result(answer, "r")], "done")
    assert causes(driven, recorder) == [("extends", "tool call rewritten, restored")]
    driven.ask([user("u"), answer, result(answer, "other")], "done")
    assert causes(driven, recorder) == [("branches", "tool result edited")]
    driven.ask([user("u"), answer | {"tool_calls": [{**call, "id": "new"}]}, user("x")], "done")
    assert causes(driven, recorder) == [("branches", "tool calls changed")]


def test_what_is_not_known_of_a_difference_is_said() -> None:
    recorder = Recorder()
    recorder.called("g", "e", 0)
    recorder.called("g", "e", 1, at=(0, 3), relation="branches")
    recorder.called("g", "e", 2, at=(0, 3), relation="branches", difference="token 3 differs from call 0")
    recorder.called("g", "e", 3, at=(0, 3), relation="branches", difference="something new")
    assert [(r["cause"], r["calls"]) for r in rows(recorder, "drift")] == [
        ("not said", 1),
        ("other", 1),
        ("tokens differ", 1),
        ("new conversation", 1),
    ]


def paid() -> Recorder:
    """Two groups of one execution; a is consumed in step 0, b not; an execution of a was lost before."""
    recorder = Recorder()
    for name in "ab":
        recorder.dispatched(name, 1)
    recorder.launched("a", "a/lost", 0)
    recorder.called("a", "a/lost", 0, n_context=5, n_output=5, cached_tokens=1, started_us=1, finished_us=501)
    recorder.finished("a", "a/lost", 1, "lost")
    recorder.launched("a", "a/0", 0, attempt=1)
    times = {"started_us": 1000, "finished_us": 3500}
    recorder.called("a", "a/0", 0, n_context=10, n_output=6, cached_tokens=4, engine="x", **times)
    recorder.called("a", "a/0", 1, at=(0, 16), n_context=2, n_output=2, cached_tokens=12, engine="x", **times)
    recorder.called("a", "a/0", 2, at=(0, 10), n_context=0, n_output=4, cached_tokens=10, engine="y",
                    delivered=False, **times)  # fmt: skip
    recorder.finished("a", "a/0", 3)
    recorder.scored("a", "a/0", 1.0)
    recorder.stepped(0, ["a"])
    recorder.consumed("a", 0, 0)
    recorder.launched("b", "b/0", 0)
    recorder.called("b", "b/0", 0, n_context=3, n_output=1)
    return recorder


def test_cost_is_what_engines_did_over_what_was_trained_on() -> None:
    spent, unspent = rows(paid(), "cost_per_token")
    # targets: 6 + 2; sampled 5 + 6 + 2 + 4; prompts 5 + 10 + 18 + 10, of these cached 1 + 4 + 12 + 10
    assert (spent["step"], spent["groups"], spent["targets"]) == (0, 1, 8)
    assert (spent["sampled_tokens"], spent["prompt_tokens"], spent["prefilled_tokens"]) == (17, 43, 16)
    assert spent["engine_s"] == pytest.approx(0.008, rel=1e-12)
    assert (spent["sampled_per_target"], spent["prefilled_per_target"]) == (17 / 8, 2.0)
    assert spent["engine_ms_per_target"] == pytest.approx(1.0, rel=1e-12)
    # what no call says is unknown, and nothing over no targets is none
    assert (unspent["step"], unspent["sampled_tokens"], unspent["prompt_tokens"]) == (None, 1, 3)
    assert [unspent[n] for n in ("prefilled_tokens", "engine_s", "sampled_per_target")] == [None] * 3


def test_cache_hits_are_of_calls_that_say() -> None:
    x, y, unnamed = rows(paid(), "cache_hits")
    assert (x["engine"], x["calls"], x["calls_unknown"]) == ("x", 2, 0)
    assert (x["prompt_tokens"], x["shared_tokens"], x["cached_tokens"]) == (28, 16, 16)
    assert (x["share"], x["share_of_shared"]) == (16 / 28, 1.0)
    assert (y["share"], y["share_of_shared"]) == (1.0, 1.0)
    assert (unnamed["engine"], unnamed["calls"], unnamed["calls_unknown"]) == (None, 2, 1)
    assert (unnamed["share"], unnamed["share_of_shared"]) == (1 / 5, None)


def test_replies_that_did_not_arrive_and_those_asked_for_again() -> None:
    recorder = Recorder()
    recorder.called("g", "e", 0, delivered=False)
    recorder.called("g", "e", 1, retry_of=0)
    recorder.called("g", "e", 2, n_output=7)
    recorder.undelivered("g", "e", 2)  # found out later, and nobody asked again
    recorder.called("g", "f", 0, role="sub-agent")
    main, sub_agent = rows(recorder, "retries")
    assert (main["calls"], main["undelivered"], main["share"], main["executions"]) == (3, 2, 2 / 3, 1)
    assert (main["undelivered_tokens"], main["retries"], main["never_repeated"]) == (10, 1, 1)
    assert (sub_agent["undelivered"], sub_agent["share"], sub_agent["executions"]) == (0, 0.0, 0)


def tool(recorder: Recorder, number: int, name: str, ms: float | None, *, status: str, text: bytes) -> None:
    began = 0 if ms is None else 1000
    recorder.put(
        ev.ToolCalled,
        group_id="g",
        execution_id="e",
        tool_call_id=str(number),
        call_id=0,
        name=name,
        arguments=b"{}",
        result=text,
        started_us=began,
        stopped_us=began + round(1e3 * (ms or 0)),
        status=status,
    )


def test_tool_latency_and_failure() -> None:
    recorder = Recorder()
    for number in range(101):
        tool(recorder, number, "bash", number, status="ok" if number else "error", text=b"fine")
    failing = [b"error: no such file", b"[ValueError] x", b"no errors", b"\xff\x00", b"Traceback (most"]
    for number, text in enumerate(failing, 200):
        tool(recorder, number, "read", None, status="unknown", text=text)
    bash, read = rows(recorder, "tool_latency")
    assert (bash["calls"], bash["p50_ms"], bash["p99_ms"], bash["max_ms"]) == (101, 50.0, 99.0, 100.0)
    assert (bash["failed"], bash["share"], bash["status_unknown"], bash["untimed"]) == (1, 1 / 101, 0, 0)
    # a harness that does not say whether its tools failed: unknown, and a guess under its own name
    assert (read["calls"], read["failed"], read["share"], read["looks_failed"]) == (5, 0, None, 3)
    assert (read["status_unknown"], read["untimed"], read["p50_ms"]) == (5, 5, None)


def test_case_40_the_lineage_of_one_execution_over_three_versions() -> None:
    recorder = Recorder()
    recorder.whole("h", [0.0])
    recorder.dispatched("g", 2, version=2)
    recorder.launched("g", "g/0", 0)
    recorder.called("g", "g/0", 0, n_output=5, spans=spans((2, 0, 3), (4, 3, 5)))
    recorder.called("g", "g/0", 1, at=(0, 7), n_output=5, spans=spans((4, 0, 1), (6, 1, 5)))
    recorder.called("g", "g/0", 2, at=(0, 4), n_output=2, delivered=False)
    recorder.called("g", "g/0", 3, role="auxiliary")
    recorder.called("g", "g/0", 4, logprobs=False)
    recorder.finished("g", "g/0", 5)
    recorder.scored("g", "g/0", 1.0)
    recorder.launched("g", "g/1", 1)
    recorder.called("g", "g/1", 0, spans=spans((6, 0, 3)))
    recorder.finished("g", "g/1", 1)
    recorder.scored("g", "g/1", None)
    recorder.stepped(7, ["g"])
    recorder.consumed("g", 7, 7)
    mine = [r for r in rows(recorder, "lineage") if r["execution_id"] == "g/0"]
    assert [(r["call_id"], r["output_start"], r["output_end"], r["version"]) for r in mine] == [
        (0, 0, 2, 2),  # call 2 leaves here
        (0, 2, 3, 2),
        (0, 3, 5, 4),
        (1, 0, 1, 4),
        (1, 1, 5, 6),
        (2, 0, 2, None),
        (3, 0, 3, None),
        (4, 0, 3, None),
    ]
    assert [(r["step"], r["consumed_version"], r["not_trained"]) for r in mine] == [
        *[(7, 7, "its advantage is 0")] * 5,  # one valid score of two
        (None, None, "not delivered"),
        (None, None, "auxiliary"),
        (None, None, "no log-probabilities"),
    ]
    others = {r["execution_id"]: r for r in rows(recorder, "lineage") if r["execution_id"] != "g/0"}
    assert others["g/1"]["not_trained"] == "its execution has no score"
    assert others["h/0"]["not_trained"] == "its group is not consumed"


def test_a_trained_token_leads_to_its_weights() -> None:
    recorder = Recorder()
    recorder.whole("g", [0.0, 1.0])
    recorder.stepped(3, ["g"])
    recorder.consumed("g", 3, 3)
    for row in rows(recorder, "lineage"):
        assert (row["not_trained"], row["step"], row["new_version"], row["path"]) == (None, 3, 4, 1)
        assert row["weights_digest"] is not None
    one = Recorder()
    one.whole("g", [0.0, 1.0], calls=3)
    assert [r["not_trained"] for r in rows(one, "lineage", j_max=2)].count("on no admitted path") == 2
