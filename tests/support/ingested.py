"""A run that was ingested by the real worker, with everything a log may hold that a lake must survive."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from ingest.rederive import derive_set
from ingest.worker import Worker
from lake import events as ev
from lake.config import Config, override
from lake.layout import Run
from lake.store import Store
from lake.wire import GAP, SCHEMA_VERSION, Headers
from tests.support.events import cell, tool
from tests.support.run_events import finished_group

GROUPS = 5


def work(run: Run) -> None:
    """One worker, to the end of the log."""
    with closing(run.open_log()) as log:
        worker = Worker(log, Store(run.lake), run.config())
        while worker.step(0.2, flush=True):
            pass
        worker.close()


def ingested_run(path: Path, *settings: str, partitions: int = 3) -> Run:
    """GROUPS ready groups and an open one; repeats, dead letters, gaps, a claim, a late score, two sets."""
    run = Run(path)
    path.mkdir()
    config = override(Config(), [f"partitions={partitions}", "commit_every_s=0.05", *settings])
    run.config_file.write_bytes(msgspec.json.encode(config))
    with closing(run.open_log(config)) as log:
        log.append([ev.RunStarted(time_us=1, run="r", config="{}", software="{}"), cell("s", 1)])
        for number in range(GROUPS - 1):
            log.append(finished_group(number))
            log.append(finished_group(number)[:4])  # a producer that repeats itself
            log.append_raw("calls", f"g-{number:06d}", Headers("model.called", 1, "x:0"), b"\xc1 no msgpack")
        log.append_raw("scores", "", Headers(GAP, SCHEMA_VERSION, "gap"), b"")
        log.append(
            [tool("g-000000", 1, b"\x00" * (3 << 20)), tool("g-000001", 2, b"x"), tool("g-000001", 2, b"x")]
        )
        log.append_raw("policy", "", Headers("no.such", 99, ""), b"")
    work(run)
    with closing(run.open_log(config)) as log:
        late = ev.ExecutionScored(
            time_us=9, group_id="g-000001", execution_id="g-000001.0", assessment="scored", value=9.0,
            evaluator="t", version=7,
        )  # fmt: skip
        log.append([late, *finished_group(GROUPS - 1), *finished_group(GROUPS)[:6], cell("s", 2)])
        log.append([cell("s", 2)])  # a hole at the end of its partition
    work(run)
    groups = [f"g-{n:06d}" for n in range(1, 4)]
    derive_set(
        Store(run.lake), msgspec.structs.replace(config.admission, j_max=1), "j_max=1", groups, lambda _: None
    )
    return run
