"""Raw calls recorded elsewhere into a lake: `headrace import calls`.

    files -> rows -> a matcher an execution -> spool (delta coded, in a temporary file)     each row once
    spool, scores -> groups, whole -> event tables (ingest.importing.writing)

Rows of any executions may stand between each other.  Memory is bounded: matchers over OPEN_BYTES in all are
dropped, the one that was used longest ago first, and restored from the spool when a row of theirs comes.
What is kept of every execution is its name, its group and a few numbers.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ingest.importing.lines import line_calls, line_scores
from ingest.importing.parquet import is_parquet, parquet_bytes, parquet_calls, parquet_scores
from ingest.importing.rows import CannotImport, Place, RawCall, Refused, Score, unscored
from ingest.importing.spool import NOWHERE, Spool, Where
from ingest.matching import Matcher, relation_of
from lake.events import ModelCalled, VersionSpan

OPEN_BYTES = 1 << 30
"""Of matchers in memory: about 350 executions of 500k own tokens each.  One that does not fit is restored at
each of its rows, 6 ms for 400 calls."""
SEEN_BYTES = 80
"""Of a call id in a set."""
IMPORTED_ID = "imported_call_id"
"""In `sampling`: the id that a call had where it came from, if that is not its number here."""

Watch = Callable[[str, int, int], None]
"""watch(stage, done, all)"""
Refuse = Callable[[Refused], None]


@dataclass(slots=True)
class Execution:
    """What is kept of an execution while files are read."""

    execution_id: str
    index: int  # in its group, in order of appearance
    calls: int = 0
    tokens: int = 0  # own ones: of new context and outputs
    last: Where = NOWHERE
    version: int | None = None  # the lowest that answered
    score: Score | None = None


@dataclass(slots=True)
class Group:
    """The executions of a group, in order of appearance."""

    group_id: str
    executions: list[Execution] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """An execution that takes rows without reading the spool."""

    matcher: Matcher = field(default_factory=Matcher)
    seen: set[int | str] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        return self.matcher.nbytes + SEEN_BYTES * len(self.seen)


class Coder:
    """Raw calls, one after the other, to delta-coded ones in a spool."""

    def __init__(self, spool: Spool, time_us: int, open_bytes: int = OPEN_BYTES) -> None:
        self.groups: dict[str, Group] = {}
        self.rows = self.raw_tokens = self.parked = 0
        self._spool, self._time_us, self._open_bytes = spool, time_us, open_bytes
        self._found: dict[str, tuple[Group, Execution]] = {}
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._held = 0

    def add(self, row: RawCall) -> Refused | None:
        """Take a call; what is wrong with it, in which case nothing changed."""
        group, execution = self._found.get(row.execution_id, (None, None))
        if group is None or execution is None:
            group, execution = self.launch(row.group_id, row.execution_id)
        elif group.group_id != row.group_id:
            reason = f"{row.execution_id} is of the group {group.group_id} above, here of {row.group_id}"
            return Refused(row.place, reason, _identity(row))
        state = self._opened(execution)
        if row.call_id in state.seen:
            reason = f"call {row.call_id!r} of {row.execution_id} stands in an earlier row"
            return Refused(row.place, reason, _identity(row))
        before = state.nbytes
        event = self._event(row, execution.calls, state.matcher)
        state.seen.add(row.call_id)
        execution.last = self._spool.add(event, execution.last)
        execution.calls += 1
        execution.tokens += event.n_context + event.n_output
        if row.version is not None:
            execution.version = min(
                row.version, row.version if execution.version is None else execution.version
            )
        self.rows += 1
        self.raw_tokens += len(row.input_ids) + len(row.output_ids)
        self._held += state.nbytes - before
        self._park()
        return None

    def launch(self, group_id: str, execution_id: str) -> tuple[Group, Execution]:
        """An execution that was not seen before."""
        group = self.groups.setdefault(group_id, Group(group_id))
        execution = Execution(execution_id, len(group.executions))
        group.executions.append(execution)
        self._found[execution_id] = group, execution
        return group, execution

    @property
    def held(self) -> int:
        """Bytes of the executions that are open."""
        return self._held

    @property
    def open(self) -> int:
        """How many executions take rows without reading the spool."""
        return len(self._open)

    def find(self, execution_id: str) -> tuple[Group, Execution] | None:
        return self._found.get(execution_id)

    def close(self) -> None:
        """No more rows: the matchers are not needed any more."""
        self._open.clear()

    def _event(self, row: RawCall, number: int, matcher: Matcher) -> ModelCalled:
        parent, shared = matcher.insert(number, row.input_ids, row.output_ids)
        relation, difference = relation_of(parent, shared, 0 if parent is None else matcher.length(parent))
        spans = () if row.version is None else (VersionSpan(row.version, 0, len(row.output_ids)),)
        return ModelCalled(
            time_us=self._time_us,
            group_id=row.group_id,
            execution_id=row.execution_id,
            call_id=number,
            role=row.role,
            parent_call_id=parent,
            shared_len=shared,
            context_ids=row.input_ids[shared:].astype("<i4", copy=False).tobytes(),
            output_ids=row.output_ids.astype("<i4", copy=False).tobytes(),
            output_logprobs=row.output_logprobs,
            relation=relation,
            difference=difference,
            finish_reason=row.finish_reason,
            spans=spans,
            sampling="{}" if row.call_id == number else _sampling(row.call_id),
        )

    def _opened(self, execution: Execution) -> _Open:
        state = self._open.get(execution.execution_id)
        if state is None:
            state = self._open[execution.execution_id] = self._restored(execution)
            self._held += state.nbytes
        self._open.move_to_end(execution.execution_id)
        return state

    def _restored(self, execution: Execution) -> _Open:
        """As it was when it was parked, from its calls."""
        calls = self._spool.calls(execution.last)
        return _Open(Matcher.restored(calls), {original_id(call) for call in calls})

    def _park(self) -> None:
        while self._held > self._open_bytes and len(self._open) > 1:
            _, state = self._open.popitem(last=False)
            self._held -= state.nbytes
            self.parked += 1


def _sampling(call_id: int | str) -> str:
    return msgspec.json.encode({IMPORTED_ID: call_id}).decode()


def original_id(call: ModelCalled) -> int | str:
    """The id that an imported call had in its file."""
    if call.sampling == "{}":
        return call.call_id
    found: int | str = msgspec.json.decode(call.sampling)[IMPORTED_ID]
    return found


def _identity(row: RawCall) -> bytes:
    return msgspec.json.encode([row.group_id, row.execution_id, row.call_id])


# ----------------------------------------------------------------------------------- the files
def check_files(paths: Sequence[str]) -> None:
    """Raise CannotImport for what is no file."""
    for path in paths:
        if not os.path.isfile(path):
            raise CannotImport(f"{path} is no file; give JSON lines (plain, zstd or gzip) or Parquet")


def read_calls(paths: Sequence[str], watch: Watch) -> Iterator[RawCall | Refused]:
    """The rows of files, one file after the other; watch("reading", bytes, all bytes)."""
    sizes = [parquet_bytes(p) if is_parquet(p) else os.path.getsize(p) for p in paths]
    before, total = 0, sum(sizes)
    for path, size in zip(paths, sizes, strict=True):
        read = parquet_calls if is_parquet(path) else line_calls
        yield from read(path, _after(watch, before, total))
        before += size


def _after(watch: Watch, before: int, total: int) -> Callable[[int], None]:
    return lambda done: watch("reading", before + done, total)


def read_scores(paths: Sequence[str], refuse: Refuse) -> dict[str, Score]:
    """execution -> its score; rows that are refused are told."""
    scores: dict[str, Score] = {}
    for path in paths:
        read = parquet_scores if is_parquet(path) else line_scores
        for row in read(path, lambda _done: None):
            if isinstance(row, Refused):
                refuse(row)
            elif row.execution_id in scores:
                place = row.place or Place(path, 0)
                earlier = scores[row.execution_id].place
                refuse(Refused(place, f"{row.execution_id} has a score already, at {earlier}"))
            else:
                scores[row.execution_id] = row
    return scores


def give_scores(coder: Coder, scores: dict[str, Score], refuse: Refuse) -> None:
    """Give each execution its score; one that made no call is launched, if its group is told."""
    for execution_id, score in scores.items():
        place = score.place or Place("", 0)
        found = coder.find(execution_id)
        if found is None and score.group_id is None:
            reason = f"no call of {execution_id} is in these files; if it made none, give its group_id here"
            refuse(Refused(place, reason, execution_id.encode()))
            continue
        group, execution = found or coder.launch(score.group_id or "", execution_id)
        if score.group_id not in (None, group.group_id):
            reason = f"{execution_id} is of the group {group.group_id}, here of {score.group_id}"
            refuse(Refused(place, reason, execution_id.encode()))
            continue
        execution.score = score
    for group in coder.groups.values():
        for execution in group.executions:
            execution.score = execution.score or unscored(execution.execution_id)
