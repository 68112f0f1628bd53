"""The proxy's process:  python -m ingest.proxy --run RUN --engine URL --host 127.0.0.1 --port P"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lake.engine_address import ENGINE_KEY, engine_key

if TYPE_CHECKING:
    from ingest.engines.model import Experts
    from ingest.proxy.calls import Limits
    from lake.config import Config

CONNECTIONS_MAX = 8192
SHUTDOWN_S = 10  # what running calls get when the process is asked to end


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ingest.proxy",
        description="The capture proxy between harnesses and engines.",
        epilog=f"Engines behind an API key: put it into {ENGINE_KEY}.",
    )
    parser.add_argument("--run", required=True, type=Path, help="the run's folder")
    parser.add_argument(
        "--engine",
        required=True,
        action="append",
        metavar="URL[#capacity=N][&prefill=URL]",
        help="an engine, for example http://127.0.0.1:30000; may be given again for more of them "
        "(lake.engine_address says what may follow #)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address (see --listen-anywhere)")
    parser.add_argument(
        "--listen-anywhere",
        action="store_true",
        help="let --host be any address of this machine: the API keys travel in clear text",
    )
    parser.add_argument("--port", required=True, type=int, help="the port to listen at")
    return parser.parse_args()


def _refuse_open_address(host: str) -> None:
    """The API keys travel in clear text: beyond this machine is for a deployment that says so."""
    from ingest.proxy.app import is_loopback

    if not is_loopback(host):
        raise ValueError(
            f"--host {host}: the proxy listens at a loopback address; use 127.0.0.1, or say "
            "--listen-anywhere: the API keys then travel in clear text"
        )


def _experts(config: Config, weights: Path) -> Experts | None:
    """The experts of the model, where they are to be kept.  Raises ValueError for a model without."""
    from ingest.engines.model import model_facts

    if not config.proxy.routed_experts:
        return None
    experts = model_facts(weights).experts
    if experts is None:
        raise ValueError(
            f"proxy.routed_experts is on, and {weights / 'config.json'} names no experts: the model is no "
            "mixture of experts; turn the setting off"
        )
    return experts


def _limits(config: Config, experts: int) -> Limits:
    """What the run's configuration says of bounds."""
    from ingest.proxy.calls import Limits

    settings = config.proxy
    return Limits(
        context_tokens=config.engine.context_tokens,
        new_tokens_max=config.rollout.new_tokens_max,
        temperature=config.rollout.temperature,
        engine_wait_s_max=settings.engine_wait_s,
        keep_alive_s=settings.keep_alive_s,
        rejoin_s=settings.rejoin_s,
        continue_aborted=settings.continue_aborted,
        state_bytes_max=settings.state_mb << 20,
        experts=experts,
    )


async def _serve(arguments: argparse.Namespace) -> None:
    import uvicorn

    from ingest.engines.cells import PoolLimits
    from ingest.engines.connecting import connect
    from ingest.engines.pool import EnginePool
    from ingest.identity import read_secret
    from ingest.proxy.app import make_app
    from ingest.proxy.rendering import Renderer
    from ingest.proxy.roles import Roles
    from lake.engine_address import parse_engine
    from lake.layout import Run

    if not arguments.listen_anywhere:
        _refuse_open_address(arguments.host)
    run = Run(arguments.run)
    config = run.config()
    settings = config.proxy
    experts = _experts(config, run.weights(0))
    log = run.open_log(config)
    renderer = Renderer.load(run.weights(0), parser=settings.parser, chat_template=settings.chat_template)
    _ = renderer.windowed  # found by trying, which takes a second: before anybody waits
    if renderer.form.name == "none":
        print(
            "warning: the chat template shows no form of tool calls that is known, so calls stay text; "
            "name one by the setting proxy.parser",
            file=sys.stderr,
        )
    addresses = [parse_engine(said) for said in arguments.engine]
    client = partial(connect, api_key=engine_key(), vocab_size=renderer.vocab_size, experts=experts)
    engine = EnginePool(
        [client(address) for address in addresses],
        PoolLimits(wait_s_max=settings.engine_wait_s),
        {address.url: address.capacity for address in addresses},
    )
    app = make_app(
        log=log,
        engine=engine,
        engine_name=", ".join(address.url for address in addresses),
        renderer=renderer,
        secret=read_secret(run),
        limits=_limits(config, experts.count if experts else 0),
        model=config.name,
        roles=Roles.load(Path(settings.role_rules) if settings.role_rules else None),
        connect=client,
    )
    server = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        http="httptools",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn ends its serving on them and then raises them again for whoever handled them before:
        # that is this, so that what follows runs too.
        signal.signal(number, lambda *_: None)
    _spare_collector()
    try:
        await uvicorn.Server(server).serve()
    finally:
        await engine.close()
        log.close()


def _spare_collector() -> None:
    """What was loaded stays, so the garbage collector need not look through it; and it comes less often.

    With the defaults it took a tenth of a call's time, and held all calls for 90 ms now and then.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def main() -> int:
    """Serves until SIGINT or SIGTERM; 2 where the arguments or the run cannot be used."""
    arguments = _arguments()
    import uvloop

    # the thread that writes to the log waits for the interpreter's lock: 5 ms, the default, is a whole call
    sys.setswitchinterval(5e-4)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(arguments))
    except ValueError as error:  # NotARun, ConfigError, RenderingError, BadSecret: the run cannot be used
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
