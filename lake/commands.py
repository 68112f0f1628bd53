"""The commands that keep a log and a lake: `headrace lake ...|log ...`.

Heavy imports come after argument parsing, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from lake.terminal import (
    DIFFERS,
    json_option,
    lake_argument,
    progress,
    show_json,
    show_table,
    size_of_text,
)


@click.group("lake")
def lake_group() -> None:
    """Keep the tables of a run: their sizes, their files, making them again."""


@click.group("log")
def log_group() -> None:
    """Make a log, see how it stands, or fill one again."""


@lake_group.command("stats")
@lake_argument
@json_option
def stats_command(path: str, as_json: bool) -> None:
    """How large the lake of a run is: each table, and the bytes that a token takes, column by column.

    Reads the ends of the files only.  LAKE is a lake's own folder or URL (s3://bucket/lake).

    \b
    headrace lake stats runs/demo
    headrace lake stats runs/demo --json
    """
    import msgspec

    from lake.layout import lake_root
    from lake.stats import stats

    found = stats(lake_root(path))
    if as_json:
        show_json(found)
        return
    show_table([msgspec.structs.asdict(t) for t in found.tables], title=found.lake)
    if found.calls is not None and found.calls.unique_tokens:
        calls = found.calls
        about = "" if calls.exact else "about "
        click.echo(
            f"{calls.calls} calls, {about}{calls.unique_tokens} unique tokens, {about}{calls.sampled_tokens} "
            "of them sampled"
        )
        show_table(
            [{"column": name, "bytes per unique token": n} for name, n in calls.bytes_per_token.items()]
        )
    click.echo(
        f"{found.rows} rows, {found.bytes} bytes in {found.files} files ({found.small_files} small ones); "
        f"{found.dead_letters} dead letters" + (f"\n{found.hint}" if found.hint else "")
    )


@lake_group.command("optimize")
@lake_argument
@click.option("--target-bytes", default="128MB", show_default=True, help="Merge files up to this size.")
@click.option(
    "--retain-hours",
    default=168.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Keep replaced files so long, for `--as-of` and for readers that are at work.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@json_option
def optimize_command(path: str, target_bytes: str, retain_hours: float, dry_run: bool, as_json: bool) -> None:
    """Make few files of many, while the workers go on: merge small ones, delete what nothing names.

    LAKE is a lake's own folder or URL (s3://bucket/lake).  A second run finds nothing to do.

    \b
    headrace lake optimize runs/demo
    headrace lake optimize runs/demo --dry-run --json
    headrace lake optimize runs/demo --retain-hours 24 --target-bytes 256MB
    """
    import msgspec

    from lake.layout import lake_root
    from lake.optimize import optimize_table, table_names
    from lake.store import Store

    store = Store(lake_root(path))
    names, size, done = table_names(store), size_of_text(target_bytes), []
    if not names:
        raise click.UsageError(f"{path} holds no table; `headrace run demo` makes a run")
    with progress() as bar:
        for name in names:
            task = bar.add_task(name, total=1)

            def told(merges: int, known: int, task: Any = task) -> None:
                bar.update(task, completed=merges, total=known + 1)

            done.append(
                optimize_table(
                    store, name, target_bytes=size, retain_h=retain_hours, dry_run=dry_run, told=told
                )
            )
            bar.update(task, completed=1, total=1)
    rows = [msgspec.structs.asdict(each) for each in done]
    if as_json:
        show_json({"dry_run": dry_run, "tables": rows})
    else:
        show_table(rows, title="would be done" if dry_run else "")


@log_group.command("init")
@click.argument("url", metavar="kafka://HOST:PORT/PREFIX")
@click.option("--partitions", type=int, help="Of each topic keyed by group (default: 4); fixed for good.")
@click.option("--replication", type=int, help="Copies of each record (default: 1; 3 outlives a broker).")
@click.option("--retention", metavar="TIME", help="How long records stay: 30d, 12h, forever (default).")
@click.option(
    "--retention-bytes", metavar="SIZE", help="At most so much a partition: 20G, unlimited (default)."
)
@click.option("--segment-bytes", metavar="SIZE", help="Of a file of the broker (default: 128M).")
@click.option("--flush-each/--no-flush-each", default=None, help="Sync the disk with every batch.")
@click.option("--alter", is_flag=True, help="Change the topics that are there already.")
@json_option
def init_command(  # noqa: PLR0917  click gives them by name
    url: str,
    partitions: int | None,
    replication: int | None,
    retention: str | None,
    retention_bytes: str | None,
    segment_bytes: str | None,
    flush_each: bool | None,
    alter: bool,
    as_json: bool,
) -> None:
    """Make the topics of a log in Kafka, or look at those that are there.

    policy and cells are compacted: they keep the newest record of each key whatever the retention is.
    Keep records until the lake has them, and as long as you may want to make the lake again from the
    log.  Exit status 1 where topics that are there differ from what is asked for; --alter changes them.

    \b
    headrace log init kafka://127.0.0.1:9092/demo --partitions 8 --retention 30d
    headrace log init kafka://127.0.0.1:9092/demo --retention 90d --alter
    """
    from lake import log_admin
    from lake.kafka_topics import Keeping

    keeping = Keeping(
        retention_ms=None if retention is None else log_admin.duration_ms(retention),
        retention_bytes=None if retention_bytes is None else log_admin.size_bytes(retention_bytes),
        segment_bytes=None if segment_bytes is None else log_admin.size_bytes(segment_bytes),
        flush_each=flush_each,
    )
    rows, different = log_admin.init(url, partitions, replication, keeping, alter=alter)
    if as_json:
        show_json({"topics": rows, "different": different})
    else:
        show_table(rows)
    if different:
        for topic, settings in different.items():
            wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
            click.echo(f"{topic} is otherwise than asked for ({wanted}); --alter changes it", err=True)
        sys.exit(DIFFERS)


@log_group.command("status")
@click.argument("target", metavar="RUN|LOGURL")
@json_option
def status_command(target: str, as_json: bool) -> None:
    """How long each partition of a log is; for a run's folder also how far behind its lake is.

    \b
    headrace log status runs/demo
    headrace log status kafka://127.0.0.1:9092/demo --json
    """
    import msgspec

    from lake import log_admin

    lanes = log_admin.status(target)
    behind = sum(lane.lag or 0 for lane in lanes)
    if as_json:
        show_json({"partitions": lanes, "records": sum(lane.records for lane in lanes), "lag": behind})
        return
    rows = [msgspec.structs.asdict(lane) for lane in lanes]
    if lanes[0].lake is None:
        rows = [{n: v for n, v in row.items() if n not in ("lake", "lag")} for row in rows]
    show_table(rows)
    click.echo(
        f"{sum(lane.records for lane in lanes)} records"
        + ("" if lanes[0].lake is None else f"; the lake is {behind} behind")
    )
