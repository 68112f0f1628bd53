"""What the proxy shows Prometheus: real calls over HTTP are counted, and only this machine may look."""

from __future__ import annotations

import asyncio
import re

from ingest.engines.client import EngineClient
from ingest.proxy.app import make_app
from ingest.proxy.rendering import Renderer
from tests.support.driven_execution import user
from tests.support.running_proxy import LIMITS, SECRET, running_proxy, until
from tests.support.scripted_engine import Say


async def scraped(proxy):
    """The series of a scrape: their text to their value."""
    async with proxy.session.get(f"{proxy.url}/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        lines = (await answer.text()).splitlines()
    found = (re.fullmatch(r"([a-z_]+(?:\{.*\})?) (\S+)", line) for line in lines)
    return {m[1]: float(m[2]) for m in found if m}


async def at_rest(proxy):
    """A scrape once nothing is in flight: a reply arrives before its call has been counted off."""
    async with asyncio.timeout(20):
        while True:
            found = await scraped(proxy)
            if not found["headrace_proxy_calls_in_flight"] and not found["headrace_proxy_events_waiting"]:
                return found
            await asyncio.sleep(0.01)


async def test_calls_tokens_and_refusals_are_counted(log, model, engine):
    async with running_proxy(log, model, engine.url) as proxy:
        before = await scraped(proxy)
        for n in range(3):
            status, _ = await proxy.answer([user(f"u{n}")])
            assert status == 200
        async with proxy.ask([user("u")], headers={}) as reply:
            assert reply.status == 401
        after = await at_rest(proxy)
    grown = {name: n - before.get(name, 0.0) for name, n in after.items()}
    assert grown['headrace_proxy_calls_total{outcome="answered",role="main"}'] == 3
    assert grown['headrace_proxy_call_seconds_count{role="main"}'] == 3
    assert grown["headrace_proxy_added_seconds_count"] == 3
    assert grown["headrace_proxy_added_seconds_sum"] > 0
    assert grown["headrace_proxy_added_seconds_sum"] < grown['headrace_proxy_call_seconds_sum{role="main"}']
    assert grown['headrace_proxy_refused_total{code="bad_token"}'] == 1
    assert grown['headrace_proxy_tokens_total{direction="in"}'] == sum(len(a.ids) for a in engine.asked)
    assert grown['headrace_proxy_tokens_total{direction="out"}'] == sum(
        len(a.output_ids) for a in engine.asked
    )
    assert grown['headrace_log_appended_records_total{log="sqlite"}'] == 3


async def test_a_call_that_runs_is_shown_and_one_that_nobody_waits_for_is_counted(log, model, engine):
    async with running_proxy(log, model, engine.url) as proxy:
        before = await scraped(proxy)
        engine.script = lambda _prompt: Say("yes", hold=asyncio.Event())
        asking = asyncio.create_task(proxy.answer([user("u")]))
        await until(lambda: engine.asked)
        assert (await scraped(proxy))["headrace_proxy_calls_in_flight"] == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        after = await at_rest(proxy)
    abandoned = 'headrace_proxy_calls_total{outcome="call_abandoned",role="main"}'
    assert after[abandoned] - before.get(abandoned, 0.0) == 1
    undelivered = "headrace_proxy_undelivered_total"
    assert after[undelivered] - before[undelivered] == 1


async def test_another_machine_is_refused(log, model):
    app = make_app(
        log=log, engine=EngineClient("http://127.0.0.1:1"), engine_name="e", renderer=Renderer.load(model),
        secret=SECRET, limits=LIMITS,
    )  # fmt: skip
    said = []

    async def send(message):
        said.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    for host, status in (("10.1.2.3", 403), ("2001:db8::1", 403), ("127.0.0.1", 200), ("::1", 200)):
        said.clear()
        scope = {
            "type": "http", "method": "GET", "path": "/metrics", "raw_path": b"/metrics", "headers": [],
            "query_string": b"", "client": (host, 5), "server": ("127.0.0.1", 1), "scheme": "http",
        }  # fmt: skip
        await app(scope, receive, send)
        assert said[0]["status"] == status, host
