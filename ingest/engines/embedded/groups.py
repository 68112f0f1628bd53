"""Weights that come through a process group: SGLang's routes around `/update_weights_from_distributed`.

    POST /init_weights_update_group      join: the sender is rank 0
    POST /begin_weight_update            from here ..
    POST /update_weights_from_distributed   names, dtypes, shapes: one bucket, broadcast in this order
    POST /end_weight_update              .. to here: what came is served, between two steps
    POST /destroy_weights_update_group   leave
    POST /weights_checker                a checksum of each tensor that is served

What was not sent stays as it was, as in SGLang.  Other than there nothing is served before the end, and a
bucket that breaks off ends the update: the engine goes on with the version that it has.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import torch
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from ingest.engines.embedded import wire
from ingest.engines.embedded.batch import Batch
from ingest.engines.embedded.engine import Engine
from ingest.engines.embedded.http import json_answer, read_body
from ingest.engines.embedded.weights import WeightsError, assemble, checked, fused, parts
from lake.collective import Collective, join_store

JOIN_S_MAX = 60.0
"""The sender asked us to join, so it is there: it meets us within this, or was killed."""

BUCKET_S_MAX = 600.0
"""A sender that was killed closes its connections, which ends the wait; this is for one that hangs."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Join(msgspec.Struct, kw_only=True):
    """The body of `/init_weights_update_group`."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class Leave(msgspec.Struct, kw_only=True):
    """The body of `/destroy_weights_update_group`."""

    group_name: str = "weight_update_group"


class Bucket(msgspec.Struct, kw_only=True):
    """The body of `/update_weights_from_distributed`, as far as it is read."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool = True
    weight_version: str | None = None
    load_format: str | None = None


def version_of(text: str) -> int:
    """The number of a `weight_version`.  Raises WeightsError."""
    if not text.isascii() or not text.isdigit():
        raise WeightsError(f"weight_version is {text!r}, the text of an integer is needed")
    return int(text)


class _Update:
    """What came since `/begin_weight_update`."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.version: int | None = None
        self.flush = False


class Groups:
    """The groups of one engine and the update that is under way; every change under `lock`."""

    def __init__(self, engine: Engine, lock: asyncio.Lock) -> None:
        self._engine, self._lock = engine, lock
        self._groups: dict[str, Collective] = {}
        self._update: _Update | None = None

    def forget(self) -> None:
        """Drop an update that is under way: other weights have been loaded since."""
        if self._update is not None:
            self._update = _Update()

    async def _answer(self, http: Request, kind: type[Any], act: Any) -> Response:
        try:
            body = msgspec.json.decode(await read_body(http.receive) or b"{}", type=kind)
            async with self._lock:
                message = await act(body)
        except (msgspec.DecodeError, WeightsError, wire.Refused, RuntimeError) as error:
            sentence = f"{error}; the engine goes on with version {self._engine.batch.version}"
            return json_answer({"success": False, "message": sentence}, 400)
        return json_answer({"success": True, "message": message})

    async def init(self, http: Request) -> Response:
        return await self._answer(http, Join, self._init)

    async def destroy(self, http: Request) -> Response:
        return await self._answer(http, Leave, self._destroy)

    async def begin(self, http: Request) -> Response:
        return await self._answer(http, dict[str, Any], self._begin)

    async def receive(self, http: Request) -> Response:
        return await self._answer(http, Bucket, self._receive)

    async def end(self, http: Request) -> Response:
        return await self._answer(http, dict[str, Any], self._end)

    async def _init(self, join: Join) -> str:
        if join.backend != "gloo":
            raise WeightsError(f"backend is {join.backend!r}; the embedded engine's tensors go by gloo")
        if not 0 < join.rank_offset < join.world_size:
            raise WeightsError(f"rank_offset is {join.rank_offset}, 1 to {join.world_size - 1} is needed")
        if join.group_name in self._groups:
            raise WeightsError(f"group {join.group_name!r} is there already; leave it first")

        def meet() -> Collective:
            store = join_store(join.master_address, join.master_port, JOIN_S_MAX)
            return Collective(
                store, join.group_name, rank=join.rank_offset, size=join.world_size, timeout_s=BUCKET_S_MAX
            )

        self._groups[join.group_name] = await asyncio.to_thread(meet)
        return f"joined group {join.group_name} as rank {join.rank_offset} of {join.world_size}"

    async def _destroy(self, leave: Leave) -> str:
        group = self._groups.pop(leave.group_name, None)
        if group is None:
            raise WeightsError(f"there is no group {leave.group_name!r}, but {sorted(self._groups)}")
        await asyncio.to_thread(group.close)
        return f"left group {leave.group_name}"

    async def _begin(self, _: dict[str, Any]) -> str:
        if self._update is not None:
            raise WeightsError("a weight-update session is already open; call end_weight_update first")
        self._update = _Update()
        return "Success"

    async def _receive(self, bucket: Bucket) -> str:
        update = self._update
        if update is None:
            raise WeightsError(
                "update_weights_from_distributed must run between begin_weight_update and end_weight_update"
            )
        version = None if bucket.weight_version is None else version_of(bucket.weight_version)
        group, tensors = self._groups.get(bucket.group_name), self._places(bucket)
        if group is None:
            raise WeightsError(f"there is no group {bucket.group_name!r}; call init_weights_update_group")
        try:
            await asyncio.to_thread(group.broadcast, list(tensors.values()))
        except RuntimeError:
            self._update = None
            await asyncio.to_thread(self._groups.pop(bucket.group_name).close)
            raise
        update.tensors |= tensors
        update.flush |= bucket.flush_cache
        update.version = version if version is not None else update.version
        return "Succeeded to update parameter online."

    def _places(self, bucket: Bucket) -> dict[str, Tensor]:
        """Empty tensors for what a bucket brings, in its order."""
        if bucket.load_format is not None or not len(bucket.names) == len(bucket.dtypes) == len(
            bucket.shapes
        ):
            raise WeightsError(
                f"load_format is {bucket.load_format!r}, with {len(bucket.names)} names, "
                f"{len(bucket.dtypes)} dtypes, {len(bucket.shapes)} shapes; none, and one each is needed"
            )
        needed, places = self._engine.shape.tensors(), {}
        for name, dtype, size in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
            if needed.get(name) != tuple(size) or dtype not in DTYPES:
                raise WeightsError(
                    f"{name} of shape {tuple(size)} and dtype {dtype}: {needed.get(name)} is served, "
                    f"in one of {', '.join(DTYPES)}"
                )
            places[name] = torch.empty(size, dtype=DTYPES[dtype])
        return places

    async def _end(self, _: dict[str, Any]) -> str:
        update, self._update = self._update, None
        if update is None:
            raise WeightsError("no weight-update session is open; call begin_weight_update first")
        if update.tensors:
            shape, served = self._engine.shape, self._engine.batch.decoder.weights
            tensors = await asyncio.to_thread(
                lambda: checked(parts(served) | update.tensors, shape, "this update")
            )

            def act(batch: Batch) -> None:
                version = batch.version if update.version is None else update.version
                batch.replace(assemble(tensors, shape), version, flush=update.flush)

            await self._engine.worker.command(act)
        return "Success"

    async def check(self, http: Request) -> Response:
        """`/weights_checker`: the first 8 bytes of a sha256 for each tensor, under SGLang's names."""

        async def act(body: dict[str, Any]) -> dict[str, str]:
            if body.get("action", "checksum") != "checksum":
                raise WeightsError(f"action is {body['action']!r}; the embedded engine does checksum only")
            served = fused(self._engine.batch.decoder.weights)
            return await asyncio.to_thread(lambda: {n: _checksum(t) for n, t in served.items()})

        try:
            sums = await act(msgspec.json.decode(await read_body(http.receive) or b"{}", type=dict[str, Any]))
        except (msgspec.DecodeError, WeightsError) as error:
            return json_answer({"success": False, "message": str(error)}, 400)
        return json_answer({"success": True, "message": "Success.", "ranks": [{"checksums": sums}]})

    async def close(self) -> None:
        """Leave every group."""
        while self._groups:
            await asyncio.to_thread(self._groups.popitem()[1].close)


def _checksum(tensor: Tensor) -> str:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.sha256(data).hexdigest()[:16]
