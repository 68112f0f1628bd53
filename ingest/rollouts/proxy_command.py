"""The command `headrace proxy`: the capture proxy of a run, alone.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path

import click

from lake.terminal import console, json_option, run_argument, set_option, show_json


@click.command("proxy")
@run_argument
@click.option(
    "--engine", "engines", multiple=True, metavar="URL",
    help="SGLang, perhaps URL#capacity=8 (calls at once); may be given again.",
)  # fmt: skip
@click.option(
    "--model",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The policy's Hugging Face folder (default: the engine's own, where it lies on this machine).",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Default: that of the last time, or any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--listen-anywhere",
    is_flag=True,
    help="Let --host be no loopback address: keys and prompts then travel in clear text.",
)
@set_option
@json_option
def proxy_command(  # noqa: PLR0917  click gives them by name
    run: Path,
    engines: tuple[str, ...],
    model: Path | None,
    port: int | None,
    host: str,
    listen_anywhere: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve the capture proxy of a run alone, for harnesses that somebody else starts.

    Makes the run's folder where there is none; goes on with live executions after a restart.  `headrace
    execution new` names an execution and prints its base URL and key, `headrace execution finish` ends and
    scores it, `headrace engines` takes engines away and back, `headrace ingest` beside it brings the log
    into the lake.  Ctrl-C stops it.

    \b
    headrace proxy runs/mine --engine http://127.0.0.1:30000 --model models/qwen3
    headrace execution new runs/mine --task fix-7 --env > env.sh
    """
    from ingest.rollouts.serving import serve
    from ingest.rollouts.settings import Given, begin, go_on
    from lake.layout import Run

    given = Given(engines=tuple(e.rstrip("/") for e in engines), model=model, settings=settings)
    if not Run(run).config_file.is_file():
        if not engines:
            raise click.UsageError(f"{run} is no run yet: give --engine (and --model)")
        config = begin(given)
    else:
        config = go_on(Run(run), given)
    out = console()

    def listening(url: str) -> None:
        if as_json:
            show_json({"run": str(run), "url": url, "base_url": f"{url}/x/EXECUTION"})
            return
        click.echo(f"base URL  {url}/x/EXECUTION      (OpenAI clients: {url}/x/EXECUTION/v1)")
        click.echo(f"one more  headrace execution new {run} --task ID")

    serve(
        run, config, host=host, port=port, anywhere=listen_anywhere,
        say=lambda said: out.print(said, markup=False, soft_wrap=True), listening=listening,
    )  # fmt: skip
