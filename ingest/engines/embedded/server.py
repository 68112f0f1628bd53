"""SGLang's native HTTP contract over the embedded engine: the routes, and what those of control do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ingest.engines.embedded import wire
from ingest.engines.embedded.batch import Batch
from ingest.engines.embedded.engine import Engine
from ingest.engines.embedded.generate import Generate
from ingest.engines.embedded.groups import Groups, version_of
from ingest.engines.embedded.http import error_answer, json_answer, read_body, read_object
from ingest.engines.embedded.metrics import CONTENT_TYPE
from ingest.engines.embedded.weights import WeightsError, read_shape, read_weights
from ingest.engines.embedded.worker import WorkerStopped


class Update(msgspec.Struct, kw_only=True):
    """The body of `/update_weights_from_disk`, as far as it is read."""

    model_path: str
    weight_version: str
    flush_cache: bool = True


class Control:
    """The routes beside `/generate`.  An update happens between two steps: all of it, or nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._updating = asyncio.Lock()
        self.groups = Groups(engine, self._updating)
        self._loads_at, self._loads_tokens = time.monotonic(), 0

    async def abort(self, http: Request) -> Response:
        data = await read_object(http)
        rid, everything = data.get("rid"), data.get("abort_all") is True
        if not everything and not isinstance(rid, str):
            return error_answer("name a rid, or set abort_all to true")
        await self._engine.worker.abort(None if everything else rid, "aborted on request")
        return Response(status_code=200)

    async def pause(self, http: Request) -> Response:
        mode = (await read_object(http)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return error_answer(f"mode is {mode!r}, not one of abort, retract, in_place")

        def act(batch: Batch) -> None:
            self._engine.worker.paused = True
            if mode == "retract":
                batch.retract()

        await self._engine.worker.command(act)
        if mode == "abort":
            await self._engine.worker.abort(None, "aborted by a pause")
        return json_answer({"message": f"paused ({mode})", "status": "ok"})

    async def resume(self, http: Request) -> Response:
        self._engine.worker.paused = False
        await self._engine.worker.command(lambda _: None)
        return json_answer({"message": "continued", "status": "ok"})

    async def update(self, http: Request) -> Response:
        try:
            update = msgspec.json.decode(await read_body(http.receive), type=Update)
            version = version_of(update.weight_version)
            async with self._updating:
                count = await self._replace(update, version)
        except (msgspec.DecodeError, WeightsError, wire.Refused) as error:
            sentence = f"{error}; the engine goes on with version {self._engine.batch.version}"
            return json_answer({"success": False, "message": sentence, "num_paused_requests": 0}, 400)
        message = f"weights of version {update.weight_version} from {update.model_path}"
        return json_answer({"success": True, "message": message, "num_paused_requests": count})

    async def _replace(self, update: Update, version: int) -> int:
        folder = Path(update.model_path)
        if (folder / "config.json").exists() and read_shape(folder) != self._engine.shape:
            raise WeightsError(f"{folder}/config.json has another shape than the model that is served")
        weights = await asyncio.to_thread(read_weights, folder, self._engine.shape)

        def act(batch: Batch) -> int:
            batch.replace(weights, version, flush=update.flush_cache)
            return len(batch.running) + len(batch.waiting) if self._engine.worker.paused else 0

        count = await self._engine.worker.command(act)
        self._engine.folder = folder
        self.groups.forget()
        return count

    async def flush(self, http: Request) -> Response:
        def act(batch: Batch) -> int:
            busy = len(batch.running) + len(batch.waiting)
            if not busy:
                batch.slots.flush()
            return busy

        busy = await self._engine.worker.command(act)
        if busy:
            return PlainTextResponse(f"Flush cache failed: {busy} calls are in flight.\n", 400)
        return PlainTextResponse("Cache flushed.\n")

    # ----------------------------------------------------------------------------------------- state
    async def health(self, http: Request) -> Response:
        return Response(status_code=200 if self._engine.worker.alive else 503)

    async def ready(self, http: Request) -> Response:
        return Response(
            status_code=200 if self._engine.worker.alive and not self._engine.worker.paused else 503
        )

    async def model_info(self, http: Request) -> Response:
        info = {
            "model_path": str(self._engine.folder),
            "tokenizer_path": str(self._engine.folder),
            "is_generation": True,
            "weight_version": str(self._engine.batch.version),
            "vocab_size": self._engine.shape.vocab_size,
            "dtype": "float32",
            "context_length": self._engine.batch.decoder.places,
        }
        return json_answer(info)

    async def server_info(self, http: Request) -> Response:
        info = {
            "engine": "headrace-embedded",
            "status": "paused"
            if self._engine.worker.paused
            else "ready"
            if self._engine.worker.alive
            else "stopped",
            "model_path": str(self._engine.folder),
            "max_running_requests": self._engine.calls_max,
            "max_queued_requests": self._engine.queue_max,
            "context_length": self._engine.batch.decoder.places,
            "max_total_num_tokens": self._engine.batch.slots.tokens_SC.size,
        }
        return json_answer(info)

    async def _load(self) -> tuple[dict[str, Any], dict[str, float]]:
        """What `/v1/loads` says, and what `/metrics` has beside it."""

        def act(batch: Batch) -> tuple[dict[str, Any], dict[str, float], int]:
            used, size = batch.slots.held_tokens, batch.slots.tokens_SC.size
            load: dict[str, Any] = {
                "dp_rank": 0,
                "num_running_reqs": len(batch.running),
                "num_waiting_reqs": len(batch.waiting),
                "num_waiting_uncached_tokens": sum(len(c.prompt) for c in batch.waiting),
                "num_used_tokens": used,
                "max_total_num_tokens": size,
                "max_running_requests": batch.calls_max,
                "token_usage": used / size,
                "cache_hit_rate": batch.cached_tokens / max(1, batch.prompt_tokens),
                "utilization": len(batch.running) / batch.calls_max,
            }
            more = {
                "num_paused_reqs": float(len(batch.running) if self._engine.worker.paused else 0),
                "num_retracted_reqs": float(sum(c.retractions > 0 for c in batch.waiting)),
            }
            return load, more, batch.sampled_tokens

        load, more, tokens = await self._engine.worker.command(act)
        now = time.monotonic()
        load["gen_throughput"] = (tokens - self._loads_tokens) / max(1e-3, now - self._loads_at)
        self._loads_at, self._loads_tokens = now, tokens
        return load, more

    async def loads(self, http: Request) -> Response:
        load, _ = await self._load()
        return json_answer({"timestamp": time.time(), "version": "headrace-embedded", "loads": [load]})

    async def metrics(self, http: Request) -> Response:
        load, more = await self._load()
        gauges = load | more | {"num_queue_reqs": load["num_waiting_reqs"]}
        return Response(self._engine.ended.text(gauges), media_type=CONTENT_TYPE)


def application(engine: Engine) -> Starlette:
    """The routes.  The engine's thread lives as long as the application's lifespan."""
    control = Control(engine)
    groups = control.groups
    read, write, both = ["GET"], ["POST"], ["GET", "POST"]
    routes = [
        Route("/generate", Generate(engine), methods=["POST", "PUT"]),
        Route("/abort_request", control.abort, methods=write),
        Route("/pause_generation", control.pause, methods=write),
        Route("/continue_generation", control.resume, methods=write),
        Route("/update_weights_from_disk", control.update, methods=write),
        Route("/init_weights_update_group", groups.init, methods=write),
        Route("/destroy_weights_update_group", groups.destroy, methods=write),
        Route("/begin_weight_update", groups.begin, methods=write),
        Route("/update_weights_from_distributed", groups.receive, methods=write),
        Route("/end_weight_update", groups.end, methods=write),
        Route("/weights_checker", groups.check, methods=both),
        Route("/flush_cache", control.flush, methods=both),
        Route("/health", control.health, methods=read),
        Route("/health_generate", control.health, methods=read),
        Route("/ready", control.ready, methods=read),
        Route("/model_info", control.model_info, methods=read),
        Route("/get_model_info", control.model_info, methods=read),
        Route("/server_info", control.server_info, methods=read),
        Route("/get_server_info", control.server_info, methods=read),
        Route("/v1/loads", control.loads, methods=read),
        Route("/metrics", control.metrics, methods=read),
    ]

    async def refused(_: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, wire.Refused) else 503
        return error_answer(str(error), status)

    handlers: dict[Any, Any] = {wire.Refused: refused, WorkerStopped: refused}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine.lifespan(app):
            yield
            await groups.close()

    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
