"""The last part of an import: whole groups into event tables, each event once however often it is imported.

    group -> its calls -> launched, finished -> scored -> dispatched      the order of the commits

Rows have partition 0 and the offsets that follow those in the lake, which the commits carry: to everything
that reads a lake it is one that a log of one partition was copied into, and `headrace log restore` makes
that log.  A group's `group.dispatched` comes last: who sees it sees all of the group.

What is there already is compared.  An import that was killed is gone on with by the same command: the order
of the events is that of the files, so that what was committed is the beginning of what is to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ingest.importing.coding import Execution, Group
from ingest.importing.rows import CannotImport
from ingest.importing.spool import Spool
from ingest.tables import BATCH_BYTES, RECORD_BYTES
from lake import failure
from lake.events import (
    Event,
    ExecutionFinished,
    ExecutionLaunched,
    ExecutionScored,
    GroupDispatched,
    ModelCalled,
)
from lake.layout import NotARun, Run
from lake.log import Record
from lake.portions import portions
from lake.rows import to_events
from lake.store import Store
from lake.tables import SCHEMAS, app_id, to_table
from lake.wire import SCHEMA_VERSION, Headers

TOPICS = ("calls", "executions", "scores", "groups")
"""In the order of their commits."""
MARK = "import.json"
"""In a lake that imports made: it follows no log."""
EVALUATOR = "import"
GROUPS_AT_ONCE, TOKENS_AT_ONCE = 256, 2_000_000
"""Compared with the lake at once, at most (a larger group is one alone)."""


class Written(msgspec.Struct, kw_only=True):
    """What an import did to the lake."""

    groups: int = 0
    executions: int = 0
    calls: int = 0
    tokens: int = 0  # own ones
    scores: int = 0
    executions_skipped: int = 0  # they were there whole
    executions_refused: dict[str, str] = {}  # why


def target(path: str) -> Store:
    """The lake to import into, marked as one.  Raises CannotImport for one that follows a run's log."""
    if "://" not in path:
        here = Path(path).absolute()
        for folder in (here, here.parent):
            lake = _lake_of(folder)
            if lake is not None and here in {folder, lake}:
                raise CannotImport(
                    f"{path} belongs to the run {folder}, whose log fills its lake; "
                    "import into a lake of its own"
                )
        if Path(path).is_file():
            raise CannotImport(f"{path} is a file; give the folder of a lake, or one that is not there yet")
    store = Store(path)
    if store.read_file(MARK) is None:
        if store.names("events"):
            raise CannotImport(
                f"{path} is filled from a log, whose offsets stand in it; import into a lake of its own"
            )
        store.write_file(MARK, b"{}")
    return store


def _lake_of(folder: Path) -> Path | None:
    """The lake of a run's folder; None where it is no run: others have a `config.json` too."""
    try:
        return Path(Run(folder).lake).absolute()
    except (NotARun, msgspec.MsgspecError):
        return None


class LakeWriter:
    """Appends events to the tables of a lake, offset after offset."""

    def __init__(self, store: Store, appended_us: int) -> None:
        self.tables = {topic: store.table(f"events/{topic}", SCHEMAS[topic]) for topic in TOPICS}
        self._offsets = {topic: table.offset(app_id(topic, 0)) for topic, table in self.tables.items()}
        self._pending: dict[str, list[tuple[Record, Event]]] = {topic: [] for topic in TOPICS}
        self._appended_us, self._size = appended_us, 0

    @property
    def is_new(self) -> bool:
        return all(offset is None for offset in self._offsets.values())

    def add(self, event: Event) -> None:
        """Append an event; durable after `flush`."""
        pending = self._pending[event.TOPIC]
        offset = (self._offsets[event.TOPIC] or 0) + len(pending)
        headers = Headers(event.TYPE, SCHEMA_VERSION, event.event_id)
        pending.append((Record(event.TOPIC, 0, offset, event.key, headers, b"", self._appended_us), event))
        self._size += RECORD_BYTES
        if isinstance(event, ModelCalled):
            self._size += 4 * event.n_context + 8 * event.n_output
        if self._size >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Commit what was added, table by table.  Raises Fenced where another import writes the same lake."""
        for topic in TOPICS:
            pairs, before = self._pending[topic], self._offsets[topic]
            if not pairs:
                continue
            end, name = (before or 0) + len(pairs), app_id(topic, 0)
            self.tables[topic].append(to_table(topic, pairs), {name: end}, {name: before})
            self._offsets[topic], self._pending[topic] = end, []
            failure.reach(f"import.after-{topic}")
        self._size = 0


class _There:
    """What the lake has of some groups, by event id."""

    def __init__(self, writer: LakeWriter, groups: Sequence[str]) -> None:
        self.events: dict[str, Event] = {}
        self.calls: dict[str, int] = {}  # execution -> how many
        self.scores: dict[str, list[ExecutionScored]] = {}
        for topic in () if writer.is_new else TOPICS:
            for event in to_events(topic, writer.tables[topic].read(groups)):
                self.events[event.event_id] = event
                if isinstance(event, ModelCalled):
                    self.calls[event.execution_id] = self.calls.get(event.execution_id, 0) + 1
                elif isinstance(event, ExecutionScored) and event.evaluator == EVALUATOR:
                    self.scores.setdefault(event.execution_id, []).append(event)

    def has(self, event: Event) -> bool:
        return event.event_id in self.events

    def differs(self, event: Event) -> bool:
        """Whether another event of this id is there; when it was is no difference."""
        there = self.events.get(event.event_id)
        return there is not None and msgspec.structs.replace(there, time_us=event.time_us) != event


class Importer:
    """Brings groups from a spool into a lake."""

    def __init__(self, store: Store, spool: Spool, time_us: int) -> None:
        self._writer, self._spool, self._time_us = LakeWriter(store, time_us), spool, time_us
        self.written = Written()

    def write(self, groups: Sequence[Group], watch: Callable[[int], None]) -> Written:
        """Bring these groups into the lake; watch(own tokens done)."""
        done = 0
        for portion in portions(groups, _tokens, TOKENS_AT_ONCE, GROUPS_AT_ONCE):
            there = _There(self._writer, [group.group_id for group in portion])
            for group in portion:
                self._group(group, there)
                done += sum(execution.tokens for execution in group.executions)
                watch(done)
        self._writer.flush()
        return self.written

    def _group(self, group: Group, there: _There) -> None:
        dispatched = GroupDispatched(
            time_us=self._time_us,
            group_id=group.group_id,
            task="{}",
            size=len(group.executions),
            policy_version=min((e.version for e in group.executions if e.version is not None), default=0),
            boundary=0,
        )
        refused = self._refused(group, there, whole=there.has(dispatched))
        self.written.executions_refused |= refused
        if refused and not there.has(dispatched):
            return  # what a killed import of other files left of it is not to be mixed with this
        new = [e for e in group.executions if e.execution_id not in refused]
        for execution in new:
            self._execution(group, execution, there)
        if not there.has(dispatched):
            self._writer.add(dispatched)
            self.written.groups += 1

    def _refused(self, group: Group, there: _There, *, whole: bool) -> dict[str, str]:
        """The executions that cannot be imported, and why; `whole`: the group is in the lake."""
        found = {}
        for execution in group.executions:
            name = execution.execution_id
            launched = self._launched(group, execution)
            if whole and not there.has(launched):
                found[name] = (
                    f"the group {group.group_id} is in the lake without it; import all of a group at once"
                )
            elif self._other_calls(execution, there) or (not whole and there.differs(launched)):
                found[name] = "it is in the lake with other calls; import it under another name or elsewhere"
        if found and not whole:
            why = f"its group was begun by an import of other files: {next(iter(found))} differs"
            found = {e.execution_id: found.get(e.execution_id, why) for e in group.executions}
        return found

    def _other_calls(self, execution: Execution, there: _There) -> bool:
        """Whether the lake has calls of it that the files have not, or fewer and says that these are all."""
        calls = there.calls.get(execution.execution_id, 0)
        ended = f"{execution.execution_id}:finished" in there.events
        if calls > execution.calls or (ended and calls != execution.calls):
            return True
        return calls > 0 and any(there.differs(call) for call in self._spool.calls(execution.last))

    def _launched(self, group: Group, execution: Execution) -> ExecutionLaunched:
        return ExecutionLaunched(
            time_us=self._time_us,
            group_id=group.group_id,
            execution_id=execution.execution_id,
            index=execution.index,
        )

    def _execution(self, group: Group, execution: Execution, there: _There) -> None:
        finished = ExecutionFinished(
            time_us=self._time_us,
            group_id=group.group_id,
            execution_id=execution.execution_id,
            status=execution.score.status if execution.score else "completed",
            calls=execution.calls,
        )
        if there.has(finished):
            self.written.executions_skipped += 1
        else:
            for call in self._spool.calls(execution.last):
                if not there.has(call):
                    self._writer.add(call)
                    self.written.calls += 1
            launched = self._launched(group, execution)
            for event in (launched, finished):
                if not there.has(event):
                    self._writer.add(event)
            self.written.executions += 1
            self.written.tokens += execution.tokens
        for score in self._scored(group, execution, there):
            self._writer.add(score)
            self.written.scores += 1

    def _scored(self, group: Group, execution: Execution, there: _There) -> Iterator[ExecutionScored]:
        """The score, where the lake has none or another: then it is a later version."""
        score = execution.score
        if score is None:
            return
        known = there.scores.get(execution.execution_id, [])
        newest = max(known, key=lambda s: s.version, default=None)
        if newest is not None and (
            score.place is None or (newest.assessment, newest.value) == (score.assessment, score.value)
        ):
            return
        yield ExecutionScored(
            time_us=self._time_us,
            group_id=group.group_id,
            execution_id=execution.execution_id,
            assessment=score.assessment,
            value=score.value,
            evaluator=EVALUATOR,
            version=0 if newest is None else newest.version + 1,
        )


def _tokens(group: Group) -> int:
    return sum(execution.tokens for execution in group.executions)
