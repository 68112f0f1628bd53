"""The engine client against a server that drops connections: what is sent again, and what never is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import numpy as np
import pytest

from ingest.engines.client import EngineClient, EngineRefused, EngineUnavailable, new_rid
from ingest.engines.transport import TRIES

ANSWER = {
    "output_ids": [4],
    "meta_info": {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-0.5, 4, None]]},
}
BODIES = {
    "/generate": json.dumps(ANSWER),
    "/model_info": '{"weight_version": "3", "vocab_size": 9}',
    "/server_info": '{"max_running_requests": 4}',
    "/v1/loads": '{"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]}',
    "/metrics": "sglang:num_running_reqs 3.0\n",
    "/update_weights_from_disk": '{"success": true}',
}


class Dropping:
    """Speaks HTTP, and closes the first `drops` connections after reading a request: before the answer, or
    in the middle of it (`half`).  `paths` has every request that it read, `status` is what it answers."""

    def __init__(self, drops: int, *, half: bool = False, status: int = 200) -> None:
        self.drops, self.half, self.status, self.paths = drops, half, status, []
        self.only = ""  # or the path whose requests alone are dropped
        self.writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
                await reader.readexactly(int(length[0].split(":")[1]) if length else 0)
                path = head.split()[1].partition("?")[0]
                self.paths.append(path)
                body = BODIES.get(path, "{}").encode()
                answer = f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
                if self.drops and path.endswith(self.only):
                    self.drops -= 1
                    writer.write(answer[:-1] if self.half else b"")
                    break
                writer.write(answer)
        writer.close()

    async def __aenter__(self) -> Dropping:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()


async def generate(client: EngineClient, **asked):
    wanted = {"rid": new_rid(), "new_tokens_max": 1, "temperature": 1.0, "timeout_s": 20}
    return await client.generate(np.array([1, 2], np.int32), **wanted | asked)


AGAIN = {
    "/ready": lambda client: client.standing(),
    "/model_info": lambda client: client.model_info(),
    "/server_info": lambda client: client.server_info(),
    "/v1/loads": lambda client: client.loads(),
    "/metrics": lambda client: client.metrics(),
    "/abort_request": lambda client: client.abort(new_rid()),
    "/pause_generation": lambda client: client.pause("retract"),
    "/continue_generation": lambda client: client.resume(),
    "/flush_cache": lambda client: client.flush(),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("path", AGAIN)
async def test_what_is_safe_is_sent_again(path, half):
    async with Dropping(TRIES - 1, half=half) as server, EngineClient(server.url) as client:
        answer = await AGAIN[path](client)
        assert set(server.paths) == {path}
        assert len(server.paths) >= TRIES  # and what aiohttp sends again itself, of what only reads
        assert answer != "silent"


@pytest.mark.parametrize("path", AGAIN)
async def test_it_is_sent_again_within_a_bound(path):
    async with Dropping(99) as server, EngineClient(server.url) as client:
        if path == "/ready":
            assert await client.standing() == "silent"
        else:
            with pytest.raises(EngineUnavailable, match=rf"{path}(\?\S+)?: .*, {TRIES} times"):
                await AGAIN[path](client)
        assert TRIES <= len(server.paths) <= 2 * TRIES


@pytest.mark.parametrize("half", [False, True])
async def test_what_may_have_been_done_is_not_sent_again(half):
    async with Dropping(1, half=half) as server, EngineClient(server.url, vocab_size=9) as client:
        with pytest.raises(EngineUnavailable, match="/generate"):
            await generate(client)
        assert server.paths == ["/generate"]
        assert (await generate(client)).output_ids.tolist() == [4]  # asked again by who wants it
        server.only, server.drops = "/update_weights_from_disk", 1
        with pytest.raises(EngineUnavailable, match="/update_weights_from_disk"):
            await client.update_weights("/weights", 4)
        assert server.paths.count("/update_weights_from_disk") == 1


async def test_an_answer_is_final_whatever_it_says():
    async with Dropping(0, status=503) as server, EngineClient(server.url) as client:
        with pytest.raises(EngineUnavailable, match="503"):
            await client.flush()
        assert await client.standing() == "paused"
        server.status = 400
        with pytest.raises(EngineRefused, match="400"):
            await client.pause("abort")
        assert server.paths == ["/flush_cache", "/ready", "/pause_generation"]


async def test_a_slow_answer_is_waited_for_once():
    got = []

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, EngineClient(url, vocab_size=9) as client:
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.3 s"):
            await client.ask("GET", "/ready", timeout_s=0.3, again=True)
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.3 s"):
            await generate(client, timeout_s=0.3)
    assert len(got) == 2


async def test_the_vocabulary_is_asked_for_once_and_not_while_the_engine_is_away():
    async with Dropping(99) as server, EngineClient(server.url) as client:
        with pytest.raises(EngineUnavailable):
            await generate(client)
        assert client.vocab_size is None
        server.drops, server.paths = 0, []
        await asyncio.gather(*(generate(client) for _ in range(5)))
        assert (client.vocab_size, server.paths.count("/model_info")) == (9, 1)
        with pytest.raises(EngineRefused, match="0 to 8 is possible"):
            await client.generate(
                np.array([9], np.int32), rid=new_rid(), new_tokens_max=1, temperature=1.0, timeout_s=9
            )


async def test_a_vocabulary_that_nobody_knows_is_said_once(monkeypatch, caplog):
    monkeypatch.setitem(BODIES, "/model_info", '{"weight_version": "default", "model_path": "/elsewhere"}')
    async with Dropping(0) as server, EngineClient(server.url) as client:
        with caplog.at_level(logging.WARNING, "headrace.engines"):
            for _ in range(2):
                await generate(client)
        assert [r.getMessage().split(" does not")[0] for r in caplog.records] == [server.url]
        assert server.paths == ["/model_info", "/generate", "/generate"]
        assert (await client.model_info()).version is None
