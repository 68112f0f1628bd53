"""Event tables without a log: events get offsets in the order they are recorded."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from lake import events as ev
from lake.log import Record
from lake.models import Models, Params, register
from lake.tables import to_table
from lake.wire import encode

MODELS = Models.load()


class Recorder:
    """Records events; one partition a topic, one microsecond an event."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[Record, ev.Event]]] = {topic: [] for topic in ev.TOPICS}
        self.clock = 0

    def add(self, event: ev.Event) -> int:
        """Record an event as it is, checked; its offset.  The same event again is a duplicate."""
        headers, _ = encode(event)
        rows = self.rows[event.TOPIC]
        rows.append((Record(event.TOPIC, 0, len(rows), event.key, headers, b"", event.time_us), event))
        return len(rows) - 1

    def put(self, kind: type[ev.Event], **fields: object) -> int:
        """Record a new event of a kind, now; its offset."""
        self.clock += 1
        return self.add(kind(time_us=self.clock, **fields))

    def at(self, seconds: float) -> Recorder:
        """The next event happens then."""
        self.clock = round(seconds * 1e6) - 1
        return self

    def tables(self) -> dict[str, pa.Table]:
        return {f"event_{topic}": to_table(topic, rows) for topic, rows in self.rows.items()}

    # ---------------------------------------------------------------- one line a fact in the tests
    def started(self, config: str) -> None:
        self.put(ev.RunStarted, run="r", config=config, software="{}")

    def dispatched(self, group: str, size: int, version: int = 0, boundary: int = 0) -> None:
        fields = {"task": "{}", "size": size, "policy_version": version, "boundary": boundary}
        self.put(ev.GroupDispatched, group_id=group, **fields)

    def launched(self, group: str, execution: str, index: int, attempt: int = 0) -> None:
        self.put(ev.ExecutionLaunched, group_id=group, execution_id=execution, index=index, attempt=attempt)

    def finished(self, group: str, execution: str, calls: int, status: str = "completed") -> None:
        self.put(ev.ExecutionFinished, group_id=group, execution_id=execution, status=status, calls=calls)

    def undelivered(self, group: str, execution: str, call_id: int) -> None:
        self.put(ev.ReplyUndelivered, group_id=group, execution_id=execution, call_id=call_id)

    def scored(self, group: str, execution: str, value: float | None, **more: object) -> int:
        fields = {"assessment": "missing" if value is None else "scored", "evaluator": "task", **more}
        return self.put(ev.ExecutionScored, group_id=group, execution_id=execution, value=value, **fields)

    def ready(self, group: str, scores_end: int, set_name: str = "default", **more: object) -> None:
        counts = {"tokens": 0, "targets": 0, "executions_valid": 0, "digest": "", **more}
        self.put(ev.GroupReady, group_id=group, set_name=set_name, scores_end=scores_end, **counts)

    def consumed(self, group: str, step: int, version: int) -> None:
        self.put(ev.GroupConsumed, group_id=group, step=step, policy_version=version)

    def stepped(
        self, step: int, groups: Sequence[str], statistics: str = "{}", executions: int | None = None
    ) -> None:
        """A step planned on its groups and committed: version `step` becomes `step + 1`."""
        n = len(groups)
        self.put(
            ev.StepPlanned,
            step=step,
            policy_version=step,
            groups=tuple(groups),
            digests=("",) * n,
            micro_steps=(1,) * n,
            set_name="default",
            seed=0,
            learning_rate=1e-3,
        )
        self.put(
            ev.StepCommitted,
            step=step,
            policy_version=step + 1,
            digest="",
            checkpoint="",
            loss=0.5,
            gradient_norm=0.25,
            executions=n if executions is None else executions,
            tokens=100,
            targets=50,
            statistics=statistics,
        )

    def called(
        self,
        group: str,
        execution: str,
        call_id: int,
        *,
        at: tuple[int, int] | None = None,
        n_context: int = 2,
        n_output: int = 3,
        role: str = "main",
        logprobs: bool = True,
        **more: object,
    ) -> None:
        """A call whose tokens are its own numbers; `at` = (parent call, shared length)."""
        context = range(1000 * call_id, 1000 * call_id + n_context)
        output = range(1000 * call_id + 500, 1000 * call_id + 500 + n_output)
        parent, shared = at if at else (None, 0)
        self.put(
            ev.ModelCalled,
            group_id=group,
            execution_id=execution,
            call_id=call_id,
            role=role,
            parent_call_id=parent,
            shared_len=shared,
            context_ids=ev.ids_to_bytes(context),
            output_ids=ev.ids_to_bytes(output),
            output_logprobs=ev.logprobs_to_bytes([-(t % 97) / 8 for t in output]) if logprobs else None,
            **{"relation": "extends" if at else "restarts", **more},
        )

    def whole(self, group: str, values: Sequence[float | None], calls: int = 1) -> None:
        """A dispatched group of executions `group/0`, ... with `calls` single-root calls each, assessed."""
        self.dispatched(group, len(values))
        for index, value in enumerate(values):
            name = f"{group}/{index}"
            self.launched(group, name, index)
            for call_id in range(calls):
                self.called(group, name, call_id)
            self.finished(group, name, calls)
            self.scored(group, name, value)


def connect(tables: dict[str, pa.Table], threads: int = 1) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(config={"threads": threads})
    register(con, tables)
    return con


def derive(
    source: Recorder | dict[str, pa.Table], *outputs: str, threads: int = 1, **params: object
) -> dict[str, pa.Table]:
    tables = source.tables() if isinstance(source, Recorder) else source
    with connect(tables, threads) as con:
        return MODELS.derive(con, outputs, Params(**params))


def rows(source: Recorder | dict[str, pa.Table], output: str, **params: object) -> list[dict]:
    return derive(source, output, **params)[output].to_pylist()
