"""Courier's harness over real HTTP: what it sends, how it hangs up, what it makes of refusals."""

import json
import statistics

import aiohttp
import pytest

from ingest.courier.accidents import Accidents
from ingest.courier.harness import Outcome, run_courier
from ingest.courier.task import CHECKS, Workspace, checks, make_task, parse_task, score
from ingest.rollouts.harnesses import ProxyLost
from tests.support.courier_agents import clumsy_by_request, perfect, serving

HASTY = next(a for a in (Accidents(None, False, (0, "g", n)) for n in range(100)) if a.hangs_up_after_s(1))


async def run(server, http, number=0, *, execution="e", **more):
    task = make_task(5, number)
    outcome = await run_courier(
        task, base_url=f"{server.url}/x/{execution}", api_key="key", http=http, **more
    )
    return parse_task(task), outcome


async def test_a_perfect_agent_scores_one_and_is_asked_like_any_agent():
    async with serving(perfect) as server, aiohttp.ClientSession() as http:
        task, outcome = await run(server, http, temperature=0.5, tokens_max=20)
        assert checks(task, outcome.workspace) == dict.fromkeys(CHECKS, True)
        assert outcome.status == "completed"
        assert [role for _, role, _, _ in server.asked] == [
            "main", "main", "main", "sub-agent", "sub-agent", "main-summary", "main", "main",
        ]  # fmt: skip
        assert {key for _, _, key, _ in server.asked} == {"Bearer key"}
        body = json.loads(server.asked[2][3])
        assert (body["max_tokens"], body["temperature"]) == (20, 0.5)
        assert [m["role"] for m in body["messages"]] == [
            "system", "user", "assistant", "tool", "assistant", "tool",
        ]  # fmt: skip
        call = body["messages"][2]["tool_calls"][0]
        assert call["id"] == body["messages"][3]["tool_call_id"] == "e-1"
        assert json.loads(call["function"]["arguments"]) == {"item": task.order["item"]}
        summary = json.loads(server.asked[6][3])["messages"]
        assert summary[1]["content"].startswith('Summary {"tag":')


async def test_a_clumsy_agent_scores_a_quarter():
    values = []
    async with serving(clumsy_by_request) as server, aiohttp.ClientSession() as http:
        for number in range(100):
            task, outcome = await run(server, http, number)
            values.append(score(task, outcome.workspace))
    assert 0.2 < statistics.fmean(values) < 0.34


async def test_a_client_that_hangs_up_closes_its_connection_and_asks_the_same_again():
    async with serving(perfect, think_s=0.05) as server, aiohttp.ClientSession() as http:
        task, outcome = await run(server, http, accidents=HASTY)
        assert score(task, outcome.workspace) == 1.0
        bodies = [body for *_, body in server.asked]
        assert server.hung_up == [bodies[1]]
        assert bodies[2] == bodies[1]
        assert len(bodies) == 9
        assert server.calls["e"] == 8


async def test_an_answer_that_comes_first_is_taken():
    async with serving(perfect) as server, aiohttp.ClientSession() as http:
        _, outcome = await run(server, http, accidents=HASTY)
        assert outcome.status == "completed"
        assert len(server.asked) == 8 + len(server.hung_up)


async def test_the_time_limit_leaves_the_workspace():
    async with serving(perfect) as server, aiohttp.ClientSession() as http:
        task, outcome = await run(server, http, accidents=Accidents(stop_after=2))
        assert outcome.status == "harness_timeout"
        assert server.calls["e"] == 2
        assert score(task, outcome.workspace) == pytest.approx(2 / 6)


@pytest.mark.parametrize("status", [401, 404, 409, 429, 500, 502, 503])
async def test_a_proxy_that_refuses_is_lost(status):
    async with serving(perfect) as server, aiohttp.ClientSession() as http:
        server.refusal = (status, "no")
        with pytest.raises(ProxyLost, match=f"chat/completions: {status}: no"):
            await run(server, http)


async def test_a_proxy_that_is_not_there_is_lost():
    async with serving(perfect) as server:
        pass
    async with aiohttp.ClientSession() as http:
        with pytest.raises(ProxyLost, match="ClientConnectorError"):
            await run(server, http)


async def test_a_full_context_ends_the_conversation_and_other_refusals_are_crashes():
    async with serving(perfect) as server, aiohttp.ClientSession() as http:
        server.refusal = (400, '{"error":{"code":"context_length_exceeded"}}')
        _, outcome = await run(server, http)
        assert outcome == Outcome(Workspace(), "completed")
        server.refusal = (400, "messages: unknown role")
        with pytest.raises(RuntimeError, match="400: messages: unknown role"):
            await run(server, http)
        server.refusal = (200, "x" * ((1 << 20) + 1))
        with pytest.raises(ValueError, match="over 1048576 bytes"):
            await run(server, http)
