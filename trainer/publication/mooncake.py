"""Weights by Mooncake's Transfer Engine over TCP: the trainer writes into the memory of an engine's tensors.

    join     GET /get_remote_instance_transfer_engine_info    where each tensor lies, and in whose session
    send     /begin_weight_update
             a write for each tensor                          the engine takes no part in it
             /end_weight_update, /update_weight_version       what was written is finished, and named

SGLang registers its tensors with `--remote-instance-weight-loader-start-seed-via-transfer-engine` (and
MOONCAKE_PROTOCOL=tcp in its environment).  Tensors that several ranks share are not written: their engine
is refused by name.  Needs the package mooncake-transfer-engine, or mooncake-transfer-engine-non-cuda.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import torch

from trainer.publication.engine import Engine, EngineRefused, PublishError
from trainer.publication.folder import Folder

STAGING_BYTES = 64 << 20
"""What the trainer registers: a tensor goes through it in pieces."""

PADDED = ("model.embed_tokens.weight", "lm_head.weight")
"""Engines add rows to these that no id asks for."""


class _Remote:
    """Where an engine's tensors lie: session, and (address, elements, bytes of one) by name."""

    def __init__(self, session: str, places: dict[str, tuple[int, int, int]], dtype: torch.dtype) -> None:
        self.session, self.places, self.dtype = session, places, dtype


class Mooncake:
    """One Transfer Engine of this process, which writes to all."""

    name = "mooncake"

    def __init__(self) -> None:
        self._remotes: dict[str, _Remote] = {}
        self._lock = threading.Lock()
        self._transfer: Any = None
        self._staging = torch.empty(0, dtype=torch.uint8)

    def _own(self, engine: Engine) -> None:
        """Ours, started when the first engine is met: under the address by which that one reaches us."""
        if self._transfer is None:
            try:
                from mooncake.engine import TransferEngine
            except ImportError as error:
                raise PublishError(
                    f"publication.transport is mooncake, whose package does not load ({error}): install "
                    "mooncake-transfer-engine-non-cuda, and Debian's libibverbs1 librdmacm1 libnuma1"
                ) from error
            os.environ.setdefault("MC_FORCE_TCP", "1")
            transfer, address = TransferEngine(), engine.our_address()
            staging = torch.empty(STAGING_BYTES, dtype=torch.uint8)
            code = transfer.initialize(address, "P2PHANDSHAKE", "tcp", "")
            code = code or transfer.register_memory(staging.data_ptr(), STAGING_BYTES)
            if code:
                raise PublishError(f"Mooncake's Transfer Engine does not start at {address}: code {code}")
            self._transfer, self._staging = transfer, staging

    def join(self, engine: Engine) -> None:
        """Learn where an engine's tensors lie: anew each time, since it may have been started anew."""
        with self._lock:
            self._own(engine)
        traits = engine.traits()
        if traits.ranks != 1:
            raise PublishError(
                f"engine {engine.url} shares its tensors between {traits.ranks} ranks, mooncake writes whole "
                "ones; name publication.transport = group"
            )
        try:
            answer = engine.get("/get_remote_instance_transfer_engine_info?rank=0")
            session, places = answer["remote_instance_transfer_engine_info"]
        except (EngineRefused, KeyError, TypeError, ValueError) as error:
            raise PublishError(
                f"engine {engine.url} does not say where its tensors lie; start SGLang with "
                f"--remote-instance-weight-loader-start-seed-via-transfer-engine ({error})"
            ) from error
        dtype = getattr(torch, traits.dtype)
        self._remotes[engine.url] = _Remote(session, {n: tuple(p) for n, p in places.items()}, dtype)

    def send(self, engine: Engine, weights: Folder, version: int, *, flush: bool) -> None:
        """Raises PublishError; the engine may then hold mixed weights."""
        remote = self._remotes[engine.url]
        fused = weights.fused()
        differing = sorted(remote.places.keys() ^ fused.keys())
        if differing:
            raise PublishError(
                f"engine {engine.url} and {weights.path} differ in {len(differing)} tensors: "
                f"{', '.join(differing[:3])}"
            )
        engine.begin()
        try:
            for served, names in fused.items():
                parts = [weights[n].to(remote.dtype).reshape(-1) for n in names]
                self._write(engine.url, remote, served, torch.cat(parts).view(torch.uint8))
        except PublishError:
            with suppress(PublishError):
                engine.post("/end_weight_update")
            raise
        engine.post("/end_weight_update")
        engine.post("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})
        if flush and not engine.flush():
            raise PublishError(
                f"engine {engine.url} took version {version} and keeps prefixes of the old one"
            )

    def _write(self, url: str, remote: _Remote, name: str, data: torch.Tensor) -> None:
        """Bytes into a tensor of the engine, through the staging buffer."""
        address, elements, size = remote.places[name]
        room = elements * size
        if data.nbytes > room or (data.nbytes < room and name not in PADDED):
            raise PublishError(f"engine {url}: {name} has {room} bytes there, {data.nbytes} here")
        for start in range(0, data.nbytes, STAGING_BYTES):
            piece = data[start : start + STAGING_BYTES]
            with self._lock:
                self._staging[: piece.nbytes].copy_(piece)
                code = self._transfer.transfer_sync_write(
                    remote.session, self._staging.data_ptr(), address + start, piece.nbytes
                )
            if code:
                raise PublishError(
                    f"engine {url}: {piece.nbytes} bytes of {name} did not reach {remote.session}: "
                    f"code {code}"
                )

    def close(self) -> None:
        """The memory is ours until the process ends; nothing is sent any more."""
        self._remotes.clear()
