"""infra/sglang/sglang.sh as its user types it: a tiny model made, served, killed, served again, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ingest.engines.client import EngineClient, EngineUnavailable, new_rid
from tests.support import sglang
from tests.support.engines import free_port

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def script(*arguments: str, status: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sglang.SCRIPT, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


async def generate(url: str) -> int:
    async with EngineClient(url, vocab_size=2048) as client:
        ids = np.arange(100, 120, dtype=np.int32)
        done = await client.generate(ids, rid=new_rid(), new_tokens_max=4, temperature=1.0, timeout_s=60)
        return len(done.output_ids)


@pytest.mark.parametrize(("kind", "seeds"), [("qwen2", "0"), ("qwen3", "556"), ("qwen3-moe", "0")])
def test_a_tiny_model_is_made_by_its_seed(tmp_path: Path, kind: str, seeds: str) -> None:
    sglang.set_up()
    weights = []
    for i, seed in enumerate(seeds):
        folder = tmp_path / str(i)
        assert f"{kind}, " in script("model", kind, str(folder), seed)
        weights.append((folder / "model.safetensors").read_bytes())
        assert json.loads((folder / "config.json").read_text())["vocab_size"] == 2048
        assert "<tool_call>" in (folder / "chat_template.jinja").read_text()
    assert [w == weights[0] for w in weights] == [seed == seeds[0] for seed in seeds]
    assert "exists already" in script("model", kind, str(tmp_path / "0"), status=2)


def test_a_server_from_start_to_stop(tmp_path: Path) -> None:
    sglang.set_up()
    script("model", "qwen2", str(tmp_path / "model"))
    port = str(free_port())
    here = {
        "SGLANG_PORT": port,
        "SGLANG_HOME_LOCAL": str(tmp_path / "home"),
        "SGLANG_VENV": str(sglang.VENV),
        "SGLANG_START_S": "600",
    }
    url = f"http://127.0.0.1:{port}"
    assert "no server" in script("status", status=1, **here)
    assert "config.json" in script("start", str(tmp_path), status=1, **here)
    try:
        assert url in script("start", str(tmp_path / "model"), **here)
        assert "is there already" in script("start", str(tmp_path / "model"), status=1, **here)
        assert url in script("status", **here)
        assert asyncio.run(generate(url)) == 4
        script("kill", **here)
        assert "no server" in script("status", status=1, **here)
        with pytest.raises(EngineUnavailable):
            asyncio.run(generate(url))
        script("start", str(tmp_path / "model"), **here)
        assert asyncio.run(generate(url)) == 4
    finally:
        script("stop", **here)
    assert "no server" in script("status", status=1, **here)
    assert script("stop", **here) == ""
