"""Headrace: an event-sourced trajectory data platform with a trainer.

    import headrace
    run = headrace.open("runs/demo")            the run's lake: SQL, Arrow, Polars
    run.sql("select * from score_by_step")

The command line is `headrace`; see `headrace --help`.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from datetime import datetime

    from ingest.capturing.capture import Capture
    from ingest.capturing.captures import Captures
    from lake.query import Lake

__version__ = "0.1.0"
__all__ = ["__version__", "capture", "captures", "main", "open", "replay"]

PACKAGES = ("ingest", "lake", "schedulers", "trainer")
RUNS = Path("runs")
EXTRAS = ("kafka", "pandas", "ray")  # optional packages that an extra of the same name brings


def _ours() -> None:
    """Refuse to go on where a plain word of ours is somebody else's module.

    The import names are plain words, and a `trainer.py` in the working folder would be found first.
    """
    here = Path(__file__).resolve().parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent.parent != here:
            raise ImportError(
                f"headrace needs its own package {name!r} beside {here / 'headrace.py'}, but finds "
                f"{origin or 'none'}; rename that file or run from another folder"
            )


_ours()

import ingest.commands  # noqa: E402  only now is it sure whose they are
from lake.audit_command import audit_command  # noqa: E402
from lake.commands import lake_group, log_group  # noqa: E402
from lake.report_command import report_command  # noqa: E402
from lake.sql_command import sql_command  # noqa: E402
from lake.terminal import (  # noqa: E402
    DIFFERS,
    MISUSED,
    cell,
    console,
    json_option,
    progress,
    run_argument,
    set_option,
    show_json,
    show_table,
)


def open(  # noqa: A001  headrace.open reads well
    path: str | Path,
    set_name: str = "default",
    as_of: str | datetime | None = None,
    *,
    memory: str | None = None,
    timeout_s: float | None = None,
) -> Lake:
    """The lake of a run (or a lake's own folder), for reading.

    `.sql(query)` gives a relation: `.to_arrow_table()`, `.pl()` (Polars), `.df()` (pandas),
    `.to_arrow_reader(rows)` for batches of any result; `.arrow(name)`, `.polars(name)`, `.pandas(name)` a
    whole table or model; `.interrupt()`, from another thread, stops what runs.

    as_of      every table as it stood then: "15m" ago, "2026-03-01T12:00Z", a datetime, "events/calls@12"
    memory     what queries may hold, such as "2GB", before they spill to disk (default: half of all)
    timeout_s  seconds that a query may compute
    Raises lake.layout.NotARun where there is neither, lake.as_of.AsOfError for a moment that is none.
    """
    from lake.query import open_lake

    return open_lake(path, set_name, as_of, memory=memory, timeout_s=timeout_s)


def capture(run: str | Path | Captures, execution: str, *, log: str = "", **options: Any) -> Capture:
    """Capture an execution of rollout code of one's own, which has the token ids in its hands.

        with headrace.capture("runs/mine", execution="e-1", group="g-1", size=8) as capture:
            call = capture.call(input_ids, output_ids, output_logprobs, version=3)
            capture.tool("bash", '{"command": "ls"}', "a.py", call_id=call)
            capture.score(1.0)

    The same events as the proxy's, checked by the same rules; acknowledged by the log when a method returns.
    The run is made where there is none (`log`: its log's URL).  Options are those of
    `ingest.capturing.captures.Captures.open`: group, task, size, index, role, version, engine.  An execution
    that was interrupted goes on when it is opened again.  Of many executions, open `captures` once and
    give it for `run`.  Raises ValueErrors: lake.config.ConfigError, ingest.capturing.arrays.CaptureError.
    """
    from ingest.capturing.captures import capture

    return capture(run, execution, log=log, **options)


def captures(run: str | Path, *, log: str = "") -> Captures:
    """A run's captures in this process, with one log and one group commit for all its threads.

    with headrace.captures("runs/mine") as captures:
        with captures.open("e-1", group="g-1") as capture: ...
    """
    from ingest.capturing.captures import Captures

    return Captures(run, log=log)


# ------------------------------------------------------------------------------- command line
@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """Rollouts of agent harnesses in one durable log; tables, SQL and training derived from it.

    \b
    headrace run demo                     train the built-in task; a few minutes on two cores
    headrace sql runs/demo "from staleness_identity"
    headrace replay runs/demo --check     every step again, bit for bit, from the log alone
    headrace replay runs/demo --set j_max=1
    headrace report runs/demo

    Exit status: 0 it holds; 1 a check found a difference, or something failed; 2 wrong use or input.
    """


def _fresh(name: str) -> Path:
    """runs/NAME, or the next free runs/NAME-2, ... where a finished run lies there already."""
    from schedulers.control import finished

    path, number = RUNS / name, 1
    while finished(path):
        number += 1
        path = RUNS / f"{name}-{number}"
    return path


@cli.command("run")
@click.argument("config")
@click.option("--run", "path", type=click.Path(path_type=Path), help="The run's folder (default: runs/NAME).")
@set_option
@json_option
def run_command(config: str, path: Path | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Start a run, or go on with one.

    CONFIG is a TOML file, the name of a shipped one (`demo`), or the folder of a run that was
    stopped or killed: it goes on from its log, nothing lost and nothing twice.  Ctrl-C stops cleanly.

    \b
    headrace run demo
    headrace run demo --set steps=12 --set log=kafka://127.0.0.1:9092 --run runs/on-kafka
    headrace run runs/demo
    """
    from lake import config as configs
    from lake.layout import Run
    from schedulers.control import drive
    from schedulers.live import Display

    if path is None and Run(Path(config)).config_file.is_file():
        path = Path(config)
    if path is not None and Run(path).config_file.is_file():
        if settings:
            raise click.UsageError(f"{path} has its settings already; --set is for a new run")
        wanted = Run(path).config()
    else:
        wanted = configs.override(configs.read(config), settings)
        path = path or _fresh(wanted.name)
    began = time.monotonic()
    with Display(console()) as display:
        display.say(f"run {path}: {wanted.steps} steps; `headrace run {path}` goes on with it after a stop")
        state = drive(path, wanted, display.say, display.show)
    summary = _summary(path, state.steps, time.monotonic() - began)
    if as_json:
        show_json(summary)
        return
    show_table([summary])
    command = _command()
    click.echo(
        f"Next:  {command} report {path}\n"
        f'       {command} sql {path} "from staleness_identity"\n'
        f"       {command} replay {path} --check\n"
        f"       {command} replay {path} --set j_max=1"
    )


def _command() -> str:
    """How this command is called from here: by its name where the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    return "headrace" if shutil.which("headrace") == str(called.absolute()) else str(called)


def _summary(path: Path, steps: Sequence[Any], seconds: float) -> dict[str, Any]:
    """What `run --json` says; `seconds` of this call."""
    from schedulers.live import mean

    scores = [s.score for s in steps if s.score is not None]
    return {
        "steps": len(steps),
        "seconds": round(seconds, 1),
        "score_first5": mean(scores[:5]),
        "score_last5": mean(scores[-5:]),
        "tokens": sum(s.tokens for s in steps),
        "run": str(path),
    }


@cli.command("replay")
@run_argument
@click.option("--steps", metavar="A..B", help="Only these steps (both included; 12.. is allowed).")
@click.option("--check", is_flag=True, help="Compare the weights of every step, bit for bit.")
@click.option("--name", help="The replay's name (default: from the settings).")
@set_option
@json_option
def replay_command(  # noqa: PLR0917  click gives them by name
    run: Path, steps: str | None, check: bool, name: str | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Train again from the log.

    With --check everything is derived again from the log alone, in a fresh folder, and each step's
    weights must come out bit for bit.  With --set the same groups are trained under other rules: the
    derived set and the steps are kept beside those of the run, and `headrace report` compares them.

    \b
    headrace replay runs/demo --check
    headrace replay runs/demo --steps 0..11 --set j_max=1
    """
    if check and settings:
        raise click.UsageError("--check is for the run's own rules; leave --set out, or leave --check out")
    with progress() as bar:
        task = bar.add_task("replay", total=None)
        result = replay(
            run,
            steps=steps,
            settings=settings,
            name=name,
            say=bar.console.print,
            watch=lambda done, of: bar.update(task, completed=done, total=of),
        )
    rows = result["steps"]
    differing = [s["step"] for s in rows if not (s["equal"] and s["data_equal"])]
    document = {"steps": len(rows), "equal": len(rows) - len(differing), "differing": differing}
    if settings:
        document |= {"name": result["name"], "folder": result["folder"]}
    if as_json:
        show_json(document)
    elif settings:
        _show_replay(result)
    else:
        click.echo(
            f"{document['equal']} of {document['steps']} steps equal; differing: {differing or 'none'}"
        )
    if differing and not settings:
        sys.exit(DIFFERS)


def replay(
    path: Path,
    *,
    steps: str | None = None,
    settings: Sequence[str] = (),
    name: str | None = None,
    say: Callable[[str], None] = lambda _sentence: None,
    watch: Callable[[int, int], None] = lambda _done, _of: None,
) -> dict[str, Any]:
    """Train a run's steps again; {"name", "folder", "settings", "steps": [ReplayedStep as dict]}.

    Without settings everything comes from the log alone, in a fresh folder; with settings the run's
    own lake gets another derived set.  Raises ReplayError, ConfigError, NotARun.
    """
    from ingest.rederive import current_lake, derive_set, fresh_lake
    from ingest.sets import set_name_of
    from lake import config as configs
    from lake.holding import RunBusy, only_one
    from lake.layout import Run
    from lake.store import Store
    from schedulers.prepare import first_policy
    from trainer import replay as replays
    from trainer.ledger import LedgerFollower

    run = Run(path)
    before = run.config()
    config = configs.override(before, settings)
    with ExitStack() as stack:
        log = stack.enter_context(closing(run.open_log(before)))
        ledger = stack.enter_context(closing(LedgerFollower(log))).catch_up()
        wanted = replays.wanted_steps(steps, ledger)
        name = name or (",".join(settings) if settings else "check")
        folder = run.replays / name
        set_name = set_name_of(config.admission, before.admission)
        if settings:
            try:
                with only_one(run):
                    store = current_lake(log, run)
            except RunBusy:
                store = Store(run.lake)  # the run is alive: its own worker keeps its lake up to date
        else:
            store = fresh_lake(log, folder / "lake", say)
    derive_set(store, config.admission, set_name, ledger.groups(wanted.stop), say)
    weights = run.weights(0)
    if not weights.exists():
        weights = first_policy(run, before, say, folder / "weights" / "v000000")
    plan = replays.Plan(name, config, store, set_name, weights, run.checkpoints, wanted, bool(settings))
    return replays.keep(folder, plan, settings, replays.replay(plan, ledger, watch))


def _report(path: str, as_json: bool) -> None:
    """What a run did: scores, staleness beside its identity, steps, and each replay beside the run."""
    from trainer.replay import kept

    run = Path(path)
    lake = open(run)
    progress = lake.rows("from progress order by step")
    identity = lake.rows("from staleness_identity")
    replays = kept(run / "replays")
    if as_json:
        beside = {r["name"]: _side_by_side(r["steps"]) for r in replays}
        show_json({"run": str(run), "progress": progress, "staleness": identity, "replays": beside})
        return
    shown = {"score_mean": "score", "d_mean": "staleness", "gradient_norm": "norm"}
    names = (
        "step",
        "score_mean",
        "d_mean",
        "loss",
        "gradient_norm",
        "targets",
        "tokens",
        "executions_missing",
    )
    rows = [{shown.get(n, n.split("_")[-1]): row[n] for n in names} for row in progress]
    show_table(rows, title=f"{run}: steps")
    kept_names = ("steps", "phi", "mu", "groups_consumed", "age_left", "d_mean", "predicted", "difference")
    brief = [{n: row[n] for n in kept_names} for row in identity]
    show_table(brief, title="staleness, measured (d_mean) and by the identity of a finite run (predicted)")
    show_table(lake.rows("from tokens_by_role"), title="tokens by role")
    for r in replays:
        _show_replay(r)


COMPARED = ("loss", "gradient_norm", "executions", "targets", "tokens")


def _side_by_side(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a step: each number of the run, then of the replay."""
    return [
        {"step": s["step"], "same weights": s["equal"]}
        | {f"{name} {side}": s[side][name] for name in COMPARED for side in ("run", "replay")}
        for s in steps
    ]


def _show_replay(replay: dict[str, Any]) -> None:
    """A replay beside its run: where all weights are the same, one line says it."""
    steps, title = replay["steps"], f"replay {replay['name']} (set {replay['set']})"
    if steps and all(s["equal"] for s in steps):
        click.echo(f"{title}: all {len(steps)} steps have the weights of the run, bit for bit")
        return
    short = {"gradient_norm": "norm", "executions": "E"}
    rows = [
        {"step": s["step"], "same": s["equal"]}
        | {short.get(n, n): f"{cell(s['run'][n])} | {cell(s['replay'][n])}" for n in COMPARED}
        for s in steps
    ]
    show_table(rows, title=f"{title}: run | replay")


for _each in (
    sql_command,
    audit_command,
    report_command(_report),
    lake_group,
    log_group,
    *ingest.commands.COMMANDS,
):
    cli.add_command(_each)


def _explain(error: BaseException) -> int:
    """Say an error in one sentence on standard error; the exit status it stands for.

    2 for wrong use or input (every such error of ours is a ValueError), 1 for what failed.
    """
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return MISUSED
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("stopped; the same command goes on from here", err=True)
        return DIFFERS
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRAS:
        click.echo(f"{error}; pip install 'headrace[{(error.name or '').split('.')[0]}]'", err=True)
        return MISUSED
    click.echo(f"{type(error).__name__}: {error}", err=True)
    if isinstance(error, ValueError):
        return MISUSED
    ours = type(error).__module__.split(".")[0] in PACKAGES  # it says all there is to say
    if not ours and not isinstance(error, RuntimeError):
        traceback.print_exception(error)
    return DIFFERS


def main() -> NoReturn:
    """The command line: `headrace`."""
    try:
        code = cli.main(prog_name="headrace", standalone_mode=False)
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        sys.exit(_explain(error))
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
