"""Which engine a call goes to, and how one that fails is left alone: decisions, with the time as argument."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.engines.cells import Health, PoolLimits, choose, taking
from ingest.engines.client import EngineClient
from ingest.engines.pool import EnginePool
from ingest.engines.request import ID_MAX, IdTexts, generate_body
from ingest.engines.waiting import Queue, Waiting

LIMITS = PoolLimits(pause_s_min=1.0, pause_s_max=5.0, silent_s_max=20.0, paused_s_max=100.0, lean_calls=2)


def health(running=0, said="ready") -> Health:
    return Health(limits=LIMITS, running=running, said=said)


def test_the_least_loaded_or_where_the_execution_was() -> None:
    engines = {"a": health(2), "b": health(1), "c": health(3)}
    assert choose(engines, None, 0.0) == "b"
    assert choose(engines, "c", 0.0) == "c"  # its prefixes lie there
    assert choose(engines, "gone", 0.0) == "b"
    engines["c"].running = 5
    assert choose(engines, "c", 0.0) == "b"  # a crowd is left
    engines["b"].reserved = 2
    assert choose(engines, None, 0.0) == "a"


def test_one_that_is_not_ready_is_avoided_and_one_that_pauses_is_better_than_none() -> None:
    engines = {"a": health(said="paused"), "b": health(7), "c": health(said="silent")}
    assert choose(engines, "a", 0.0) == "b"
    engines["b"].probed("silent", 0.0)
    assert choose(engines, "b", 0.0) == "a"
    engines["a"].probed("silent", 0.0)
    assert choose(engines, "b", 0.0) is None


def test_a_full_one_is_left_and_waited_for_where_all_are_full() -> None:
    engines = {"a": health(2), "b": health(5), "c": health(said="paused")}
    engines["a"].capacity, engines["b"].capacity = 2, 8
    assert choose(engines, "a", 0.0) == "b"
    engines["b"].reserved = 3
    assert choose(engines, "a", 0.0) is None
    assert taking(engines, 0.0) == ["a", "b"]  # one that pauses is no better than a wait


def test_from_one_that_leaves_a_call_goes_where_it_said() -> None:
    engines = {"a": health(), "b": health(1), "c": health(5)}
    engines["a"].to = ["c", "gone", "b"]
    assert choose(engines, "a", 0.0) == "c"
    engines["c"].capacity = 5
    assert choose(engines, "a", 0.0) == "b"
    assert choose(engines, None, 0.0) == "b"
    assert choose(engines, None, 0.0, ["b", "c"]) == "b"
    engines["a"].to = None
    assert choose(engines, "a", 0.0) == "a"


def test_a_failure_closes_for_a_pause_that_grows_until_a_good_answer() -> None:
    engine = health()
    pauses, now = [], 0.0
    for _ in range(5):
        now = max(now, engine.closed_until)
        engine.failed(now, now + 0.5, "500")
        pauses.append(engine.closed_until - now - 0.5)
        assert engine.state(now + 0.6) == "broken"
        assert engine.words(now + 0.6) == "broken (500)"
        now += 0.5
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert engine.state(engine.closed_until) == "ready"
    engine.succeeded()
    engine.failed(100.0, 100.0, "500")
    assert engine.closed_until == 101.0


def test_calls_that_one_fault_took_along_are_one_failure() -> None:
    engine = health()
    for _ in range(64):
        engine.failed(began=0.0, now=10.0, reason="gone")
    assert (engine.failures, engine.closed_until) == (1, 11.0)


def test_calls_are_given_up_where_the_engine_stays_silent() -> None:
    engine = health(3)
    engine.probed("silent", 5.0)
    engine.probed("silent", 15.0)
    assert not engine.lost(25.0, False)
    assert engine.lost(25.1, False)
    engine.probed("paused", 25.2)
    assert not engine.lost(125.0, True)


def test_calls_leave_a_pause_that_does_not_end_where_another_engine_is_ready() -> None:
    engine = health(3)
    engine.probed("paused", 5.0)
    assert not engine.lost(105.0, True)
    assert engine.lost(105.1, True)
    assert not engine.lost(9000.0, False)
    engine.probed("ready", 9000.0)
    assert not engine.lost(9900.0, True)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["ready", "paused", "silent"]), st.none() | st.just(5)),
        min_size=1,
    ),
    st.none() | st.integers(0, 9),
)
def test_whatever_is_known_a_call_goes_to_the_best_there_is(known, before) -> None:
    engines = {str(k): health(running, said) for k, (running, said, _) in enumerate(known)}
    for k, (_, _, capacity) in enumerate(known):
        engines[str(k)].capacity = capacity
    url = choose(engines, str(before), 0.0)
    states = {engine.state(0.0) for engine in engines.values()}
    best = "ready" if "ready" in states else "paused"
    free = [u for u, e in engines.items() if e.state(0.0) == best and not e.full]
    assert url in free if free else url is None


async def test_whose_turn_it_is() -> None:
    queue = Queue(patience_s=10.0)

    def waits(affinity, age, number, since=0.0):
        queue.add(Waiting(affinity, age, number, since, asyncio.get_running_loop().create_future()))

    waits("young", 9, 20)
    waits("old", 1, 21)
    waits("old", 1, 22)
    waits("busy", 0, 23)
    order, running = [], {"busy": 1}
    while call := queue.next(5.0, running):
        order.append((call.affinity, call.number))
        running[call.affinity] = running.get(call.affinity, 0) + 1
        queue.discard(call)
    assert order == [("old", 21), ("young", 20), ("busy", 23), ("old", 22)]
    waits("old", 1, 31, since=0.0)
    waits("busy", 0, 30, since=0.0)
    waits("new", 7, 32, since=6.0)
    assert queue.next(10.0, {"busy": 5}).number == 30  # they have waited for long: in their order


def test_a_key_that_cannot_stand_in_a_header_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="API key of http://a:1"):
        EngineClient("http://a:1", api_key="sk\nx")
    assert EngineClient("http://a:1", api_key="sk-1\n")._headers["Authorization"] == "Bearer sk-1"


def test_engines_are_given_each_once() -> None:
    with pytest.raises(ValueError, match="give one at least"):
        EnginePool([])
    with pytest.raises(ValueError, match="each once"):
        EnginePool([EngineClient("http://a:1"), EngineClient("http://a:1/")])


def test_where_executions_went_is_kept_within_a_bound() -> None:
    pool = EnginePool([EngineClient("http://a:1")], PoolLimits(affinities_max=3))
    for k in range(5):
        pool._of(f"e-{k}")
        pool._of("e-0")
    assert list(pool._known) == ["e-3", "e-4", "e-0"]
    asyncio.run(pool.close())


TEXTS = IdTexts()


@settings(deadline=None)  # the texts of ids are made when ids first come
@given(st.lists(st.integers(0, 3000) | st.just(ID_MAX + 1), min_size=1, max_size=200))
def test_ids_become_the_json_that_they_are(ids) -> None:
    assert json.loads(b"[" + bytes(TEXTS.json(np.array(ids, np.int32)))) == ids


def test_a_larger_id_comes_later() -> None:
    for ids in ([7], [9, 262_144, 0]):
        assert json.loads(b"[" + bytes(TEXTS.json(np.array(ids, np.int32)))) == ids
    body = json.loads(generate_body("r", np.array([1, 12], np.int32), {"top_k": -1}))
    assert body == {
        "rid": "r", "input_ids": [1, 12], "sampling_params": {"top_k": -1}, "return_logprob": True,
    }  # fmt: skip
