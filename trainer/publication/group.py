"""Weights by a process group: buckets of tensors, broadcast from the trainer (rank 0) to an engine's ranks.

    join     /init_weights_update_group, and our half of the meeting           once; again after a restart
    send     /begin_weight_update
             /update_weights_from_distributed, and our broadcast               for each bucket
             /end_weight_update

One group an engine, not one for all: an engine that dies inside a collective takes nobody else's update with
it, and joins anew alone.  gloo carries it between CPUs, NCCL to engines on GPUs (from the trainer's own).
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import torch

from lake.collective import BACKENDS, Collective, open_store
from trainer.publication.engine import Engine, EngineRefused, PublishError
from trainer.publication.folder import Folder

BUCKET_BYTES = 256 << 20
"""What both sides hold at once beside the weights."""

JOIN_S_MAX = 60.0
"""Both sides meet as soon as the engine's scheduler reads the request, between two steps."""

_numbers = itertools.count()
T = TypeVar("T")


def beside(act: Callable[[], T], name: str) -> Future[T]:
    """Run `act` in a thread of its own.  The thread is a daemon: nobody waits for a peer that hangs."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class _Joined:
    """What the trainer holds of an engine's group."""

    def __init__(self, collective: Collective, name: str, dtype: str) -> None:
        self.collective, self.name, self.dtype = collective, name, dtype
        self.used = False  # something has gone through it


class Group:
    """The groups of this trainer, by engine.  They survive from publication to publication."""

    name = "group"

    def __init__(self, timeout_s: float, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._timeout_s, self._bucket_bytes = timeout_s, bucket_bytes
        self._joined: dict[str, _Joined] = {}

    def join(self, engine: Engine) -> None:
        """Meet an engine where we have not yet.  Raises PublishError; the engine serves as before."""
        if engine.url in self._joined:
            return
        dtype, ranks, device, _ = engine.traits()
        kind = "cuda" if device.startswith("cuda") and torch.cuda.is_available() else "cpu"
        address = engine.our_address()
        store = open_store(address, JOIN_S_MAX)
        name = f"headrace-{os.getpid()}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        body = {
            "master_address": address,
            "master_port": store.port,
            "rank_offset": 1,
            "world_size": 1 + ranks,
            "group_name": name,
            "backend": BACKENDS[kind],
        }
        asked = beside(lambda: engine.post("/init_weights_update_group", body, JOIN_S_MAX), "join")

        def meet() -> Collective:
            return Collective(store, name, rank=0, size=1 + ranks, device=kind, timeout_s=self._timeout_s)

        ours = beside(meet, "meet")
        asked.result()  # first: where the engine refuses, nobody comes to meet us
        try:
            self._joined[engine.url] = _Joined(ours.result(JOIN_S_MAX), name, dtype)
        except (RuntimeError, TimeoutError) as error:
            raise PublishError(f"engine {engine.url} did not come to group {name}: {error}") from error

    def send(self, engine: Engine, weights: Folder, version: int, *, flush: bool) -> None:
        """Raises PublishError; the engine may then hold mixed weights."""
        joined = self._joined[engine.url]
        try:
            self._send(engine, joined, weights, version, flush)
        except EngineRefused:
            if not joined.used:
                raise
            self.join(engine)  # it was started anew since, and knows nothing of the group
            self._send(engine, self._joined[engine.url], weights, version, flush)

    def _send(self, engine: Engine, joined: _Joined, weights: Folder, version: int, flush: bool) -> None:
        last = {"flush_cache": flush, "weight_version": str(version)}
        try:
            engine.begin()
            held: dict[str, torch.Tensor] = {}
            for bucket in weights.buckets(self._bucket_bytes, getattr(torch, joined.dtype)):
                if held:
                    self._bucket(engine, joined, held, {"flush_cache": False})
                held = bucket
            self._bucket(engine, joined, held, last)
            engine.post("/end_weight_update")
        except PublishError:
            self._leave(engine)
            with suppress(PublishError):  # the engine's session, where it still has one
                engine.post("/end_weight_update")
            raise
        joined.used = True

    def _bucket(
        self, engine: Engine, joined: _Joined, bucket: dict[str, torch.Tensor], more: dict[str, Any]
    ) -> None:
        """One bucket: the engine is told what comes, and it comes."""
        body = {
            "names": list(bucket),
            "dtypes": [joined.dtype] * len(bucket),
            "shapes": [list(t.shape) for t in bucket.values()],
            "group_name": joined.name,
            "selector": "target",
        }
        tensors = [t.to(joined.collective.device) for t in bucket.values()]
        ours = beside(lambda: joined.collective.broadcast(tensors), "broadcast")
        engine.post("/update_weights_from_distributed", body | more)  # its answer comes after the bucket
        try:
            ours.result(self._timeout_s)
        except (RuntimeError, TimeoutError) as error:
            raise PublishError(f"engine {engine.url} left group {joined.name}: {error}") from error

    def _leave(self, engine: Engine) -> None:
        """Give a group up: it broke, or its engine was started anew.  The next `join` makes another."""
        joined = self._joined.pop(engine.url)
        with suppress(PublishError):
            engine.post("/destroy_weights_update_group", {"group_name": joined.name}, JOIN_S_MAX)
        joined.collective.close()

    def close(self) -> None:
        """Give all groups up; engines leave theirs when they use them next."""
        while self._joined:
            self._joined.popitem()[1].collective.close()
