"""The command `headrace import calls`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from lake.terminal import DIFFERS, console, json_option, progress, show_json, show_table, size_of_text

if TYPE_CHECKING:
    from ingest.importing.run import Imported


@click.group("import")
def import_group() -> None:
    """Bring in what was recorded elsewhere."""


@import_group.command("calls")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--into", required=True, metavar="LAKE", help="The lake to import into: a folder or URL.")
@click.option("--scores", "scores", multiple=True, metavar="FILE", help="Scores of the executions.")
@click.option(
    "--memory",
    default="1GiB",
    show_default=True,
    help="For executions whose rows stand between each other; more of them are read again and again.",
)
@json_option
def calls_command(
    files: tuple[str, ...], into: str, scores: tuple[str, ...], memory: str, as_json: bool
) -> None:
    """Import raw calls: each row one call with its whole input, as a proxy or a trainer wrote it down.

    FILE is JSON lines (plain, zstd or gzip) or Parquet, rows of any executions between each other; a group
    stands in the files of one import whole.  Columns: group_id, execution_id, call_id, input_ids, output_ids;
    optional: role (main, main-summary, sub-agent, sub-agent-summary, auxiliary), output_logprobs (without
    them a call is never trained), version (of the policy), finish_reason.  Calls are numbered as they come.

    Scores are rows of execution_id and, optional, score, status and group_id (of an execution without
    calls).  status: scored, partial or missing; or how the execution ended: completed, harness_timeout (with
    a score: partial), overall_timeout, crashed, lost.  No score is `missing`, never 0.

    Importing the same files again changes nothing, and finishes an import that was killed.  Rows that are
    refused are in `dead_letters` with file and line; exit status 1 where there are any.

    \b
    headrace import calls calls.jsonl.zst --into lakes/traces
    headrace import calls a.parquet b.parquet --into lakes/traces --scores scores.jsonl --json
    headrace sql lakes/traces "from weights"
    """
    from ingest.importing.run import import_calls

    open_bytes = size_of_text(memory)
    began = time.monotonic()
    with progress() as bar:
        task = bar.add_task("", total=None)

        def watch(stage: str, done: int, of: int) -> None:
            unit, scale = {"reading": ("MB", 10**6), "writing": ("ktokens", 10**3)}[stage]
            some, every = -(-done // scale), -(-of // scale)
            bar.update(task, description=f"{stage}, {unit}", completed=some, total=every)

        done = import_calls(files, into, scores, open_bytes=open_bytes, watch=watch)
    _show(done, time.monotonic() - began, as_json=as_json)
    if done.rows_refused or done.written.executions_refused:
        sys.exit(DIFFERS)


def _show(done: Imported, seconds: float, *, as_json: bool) -> None:
    written = done.written
    document: dict[str, Any] = {
        "lake": done.lake,
        "rows": done.rows,
        "rows_refused": done.rows_refused,
        "groups": written.groups,
        "executions": written.executions,
        "executions_skipped": written.executions_skipped,
        "executions_refused": len(written.executions_refused),
        "calls": written.calls,
        "scores": written.scores,
        "raw_tokens": done.raw_tokens,
        "own_tokens": written.tokens,
        "seconds": round(seconds, 2),
    }
    first = [f"{refused.place}: {refused.reason}" for refused in done.first_refused]
    if as_json:
        show_json(document | {"first_refused": first, "refused": written.executions_refused})
        return
    show_table([{"what": name, "": str(value)} for name, value in document.items()], title="imported")
    err = console()
    for sentence in first:
        err.print(f"refused {sentence}", markup=False, highlight=False)
    if done.rows_refused > len(first):
        err.print(f"... and {done.rows_refused - len(first)} more: see `dead_letters`", markup=False)
    for name, reason in list(written.executions_refused.items())[:20]:
        err.print(f"refused execution {name}: {reason}", markup=False, highlight=False)
