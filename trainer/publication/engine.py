"""What the trainer asks of an engine, by the contract that SGLang and the embedded engine share.

PublishError        an engine did not take the weights: which, what it said, what it serves
├── EngineAway      it does not answer; trying again may help
└── EngineRefused   it answered no
"""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from lake.engine_address import engine_key
from lake.processes import ask
from lake.sglang import READY_S_MAX

TRIES_S_MAX = READY_S_MAX
"""An engine that is away is being started again, by the run or by whoever has it: as long as that takes."""

ASK_S_MAX = 15.0
"""A question that costs nothing.  `/ready` and `/model_info` answer at once, also while paused."""


class PublishError(RuntimeError):
    """An engine did not take the weights: which, and what it said."""


class EngineAway(PublishError):
    """The engine does not answer."""


class EngineRefused(PublishError):
    """The engine answered that it will not."""


def _words(body: bytes) -> str:
    """The engine's own sentence out of an answer."""
    text = body[:65536].decode(errors="replace")
    try:
        data = json.loads(text)
    except ValueError:
        return text[:500]
    if isinstance(data, dict):
        data = data.get("message") or data.get("error") or data
        data = data.get("message", data) if isinstance(data, dict) else data
    return str(data)[:500]


class Traits(NamedTuple):
    """What an engine is, as far as sending depends on it."""

    dtype: str  # of its weights, a name of torch
    ranks: int  # processes that share them
    device: str
    plain: bool  # it keeps what it is sent as it comes


class Engine:
    """One engine.  Every method raises EngineAway and EngineRefused; nothing is tried twice but `wait`."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        key = engine_key()
        self._key = {"Authorization": f"Bearer {key}"} if key else {}

    def post(self, path: str, body: dict[str, Any] | None = None, timeout_s: float | None = None) -> Any:
        """The JSON answer of a control request, or its text."""
        data = json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"} | self._key
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method="POST")
        return self._ask(request, path, timeout_s or self._timeout_s)

    def get(self, path: str) -> Any:
        """The JSON answer of a question."""
        return self._ask(urllib.request.Request(self.url + path, headers=self._key), path, ASK_S_MAX)

    def _ask(self, request: urllib.request.Request, path: str, timeout_s: float) -> Any:
        try:
            answer = ask(request, timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                said = _words(error.read(65536))
            raise EngineRefused(f"engine {self.url}{path} answered {error.code}: {said}") from error
        except OSError as error:
            raise EngineAway(f"engine {self.url}{path} does not answer: {error}") from error
        try:
            data = json.loads(answer)
        except ValueError:
            return answer.decode(errors="replace")
        if isinstance(data, dict) and data.get("success") is False:
            raise EngineRefused(f"engine {self.url}{path}: {_words(answer)}")
        return data

    def wait(self) -> dict[str, Any]:
        """Its `/model_info`, once it answers.  Raises EngineAway after TRIES_S_MAX."""
        until = time.monotonic() + TRIES_S_MAX
        while True:
            try:
                info: dict[str, Any] = self.get("/model_info")
                return info
            except EngineAway as error:
                if time.monotonic() > until:
                    raise EngineAway(f"{error} (for {TRIES_S_MAX:g} s)") from error
                time.sleep(0.5)

    def version(self) -> str:
        """What it says it serves: a number, or SGLang's `default` where nobody gave one."""
        return str(self.get("/model_info")["weight_version"])

    def paused(self) -> bool:
        """Whether it takes no calls now."""
        try:
            self.get("/ready")
        except EngineRefused:
            return True
        return False

    def traits(self) -> Traits:
        """What kind of engine it is."""
        info = self.get("/model_info")
        if "dtype" in info:  # the embedded engine; SGLang says it elsewhere
            return Traits(dtype=str(info["dtype"]), ranks=1, device="cpu", plain=True)
        server = self.get("/server_info")
        dtype = str(server.get("dtype") or "auto")
        return Traits(
            dtype="bfloat16" if dtype == "auto" else dtype,
            ranks=int(server.get("tp_size") or 1) * int(server.get("pp_size") or 1),
            device=str(server.get("device") or "cuda"),
            plain=not server.get("quantization"),
        )

    def pause(self, mode: str) -> None:
        self.post("/pause_generation", {"mode": mode})

    def resume(self) -> None:
        self.post("/continue_generation", {})

    def begin(self) -> None:
        """Open an update that comes in parts; `/end_weight_update` ends it."""
        try:
            self.post("/begin_weight_update", {"selector": "target"})
        except EngineRefused:  # a trainer before us was killed between begin and end
            self.post("/end_weight_update")
            self.post("/begin_weight_update", {"selector": "target"})

    def load(self, folder: Path, version: str, *, flush: bool) -> None:
        """Serve a folder, which both can read, as `version`."""
        body = {"model_path": str(folder.absolute()), "weight_version": version, "flush_cache": flush}
        self.post("/update_weights_from_disk", body)

    def flush(self) -> bool:
        """Drop held prefixes; whether it could (it cannot while calls are in flight)."""
        try:
            self.post("/flush_cache", timeout_s=ASK_S_MAX)
        except EngineRefused:
            return False
        return True

    def checksums(self) -> dict[str, str]:
        """One text for each tensor that is served, equal for equal values; {} where the engine has none.

        Answered while paused as well.
        """
        try:
            answer = self.post("/weights_checker", {"action": "checksum"})
        except EngineRefused:
            return {}
        ranks = answer.get("ranks", []) if isinstance(answer, dict) else []
        return {f"{i} {name}": s for i, rank in enumerate(ranks) for name, s in rank["checksums"].items()}

    def sample(self, prompt: Sequence[int], new_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n,) int32 sampled after a prompt, and their log-probabilities (n,) float64.

        A paused engine lets it wait.
        """
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"max_new_tokens": new_tokens, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            # SGLang computes the prompt anew for its log-probabilities, says that nothing was cached, and
            # samples on what another version left under the same prefix; a key of its own shares none
            "logprob_start_len": 0,
            "extra_key": f"headrace-probe-{uuid.uuid4().hex}",
        }
        triples = self.post("/generate", body)["meta_info"]["output_token_logprobs"]
        logprobs = np.array([logprob for logprob, _, _ in triples], np.float64)
        return np.array([token for _, token, _ in triples], np.int32), logprobs

    def our_address(self) -> str:
        """The address under which the engine reaches this machine."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with socket.create_connection((parts.hostname, port), ASK_S_MAX) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            raise EngineAway(f"engine {self.url} does not answer: {error}") from error
