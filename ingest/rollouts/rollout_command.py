"""The command `headrace rollout`: any harness on a file of tasks.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from lake.terminal import (
    DIFFERS,
    console,
    json_option,
    run_argument,
    set_option,
    show_json,
    show_table,
)

A_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
SECONDS = click.FloatRange(min=0, min_open=True)
ONE_OR_MORE = click.IntRange(min=1)


@click.command("rollout")
@run_argument
@click.option("--harness", metavar="CMD", help="The command line that carries out a task.")
@click.option("--tasks", type=click.Path(path_type=Path), help="JSON lines, each an object with a `prompt`.")
@click.option("--scorer", metavar="CMD", help="Its last line is the score; without one all are missing.")
@click.option("--model", type=A_FOLDER, help="The policy's Hugging Face folder (tokenizer, template).")
@click.option("--engine", "engines", multiple=True, metavar="URL", help="SGLang; default: the embedded one.")
@click.option("--group-size", type=ONE_OR_MORE, help="Executions of each task (default: 8).")
@click.option("--concurrent", type=ONE_OR_MORE, help="Executions at once (default: 8).")
@click.option("--harness-timeout", type=SECONDS, metavar="S", help="Then: scored as it stands (3600).")
@click.option("--timeout", type=SECONDS, metavar="S", help="Of harness and scorer together (none).")
@click.option("--waterlevel", type=click.IntRange(min=0), help="Groups under way at once (0: all).")
@click.option("--env", "environment", multiple=True, metavar="NAME[=VALUE]", help="For every harness.")
@click.option("--template", type=A_FOLDER, help="Each workspace begins as a copy of it.")
@click.option("--home", metavar="own|shared|FOLDER", help="HOME: empty, yours, or a copy (default: own).")
@set_option
@json_option
def rollout_command(run: Path, as_json: bool, **given: Any) -> None:
    """Have any harness carry out tasks behind the capture proxy, and score what it leaves.

    CMD is cut into words as a shell would, and no shell sees it.  Placeholders: {prompt} {prompt_file}
    {task} {base_url} {api_key} {model} {workspace} {execution} {here}; for a scorer {output} too, and neither
    address nor key; {{prompt}} is the text itself.  The environment has base URL, key and model as
    OPENAI_..., ANTHROPIC_... and HEADRACE_..., and no other key of yours: --env NAME passes one on.

    An execution has RUN/workspaces/EXECUTION with work/ (where it runs), home/ and output.log.  Its scorer
    prints a number, or {"score": 0.5, "detail": ...}.  A score is missing where the scorer fails, the harness
    crashes (an exit status not in rollout.exit_codes) or --timeout ends it; after --harness-timeout the
    workspace is scored as it stands.  Nothing of either outlives it.

    The same command goes on after a stop or a kill; ends when every group is ready, with 1 where an audit
    holds one back.

    \b
    headrace rollout runs/fix --model models/qwen3 --engine http://127.0.0.1:30000 --tasks tasks.jsonl \\
        --harness "claude --dangerously-skip-permissions -p -- {prompt}" --scorer "python {here}/score.py"
    headrace rollout runs/fix
    """
    from ingest.rollouts.display import Display
    from ingest.rollouts.rollout import drive, summary
    from ingest.rollouts.settings import Given, begin, go_on
    from lake.layout import Run

    numbers = {
        "group_size": given.pop("group_size"),
        "concurrent_executions": given.pop("concurrent"),
        "harness_timeout_s": given.pop("harness_timeout"),
        "overall_timeout_s": given.pop("timeout"),
        "waterlevel": given.pop("waterlevel"),
    }
    said = Given(numbers=numbers, **given)
    there = Run(run).config_file.is_file()
    if not there and (said.harness is None or said.tasks is None):
        raise click.UsageError(f"{run} is no run yet: a new rollout needs --harness and --tasks")
    config = go_on(Run(run), said) if there else begin(said)
    began = time.monotonic()
    with Display(console()) as display:
        display.say(f"rollout {run}: the same command goes on with it after a stop")
        done = drive(run, config, display.say, display.show)
    document = summary(Run(run), done, time.monotonic() - began)
    if as_json:
        show_json(document)
    else:
        show_table([{name: _text(value) for name, value in document.items()}])
        click.echo(f'Next:  headrace sql {run} "select role, count(*) from calls group by role"')
    if done.held:
        sys.exit(DIFFERS)


def _text(value: Any) -> Any:
    """A cell of the summary: what is counted by name as `6 completed, 1 crashed`."""
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{n} {name}" if isinstance(n, int) else f"{name}: {n}" for name, n in value.items())
