"""What a run shows of its client: which turns it continued, and how they came back.

Found from the engine's own record of token ids and from the requests on the wire, not from the lake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ingest.matching import Ids
from ingest.proxy.dialects.anthropic import Anthropic
from ingest.proxy.dialects.chat import Chat
from ingest.proxy.dialects.dialect import Dialect
from ingest.proxy.dialects.responses import Responses
from ingest.proxy.neutral import Message, Request
from lake.layout import Run
from lake.query import open_lake
from tests.harnesses.frame import Outcome, Wire
from tests.harnesses.scenario import Line

DIALECTS: dict[str, Dialect] = {"completions": Chat(), "responses": Responses(), "messages": Anthropic()}
"""By the end of a request's path: an SDK speaks several."""


Tables = dict[str, list[dict[str, Any]]]


def common(a: Ids, b: Ids) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


@dataclass(eq=False)
class Turn:
    """One call, as the engine, the wire and the lake have it."""

    role: str
    line: Line
    prompt: Ids
    output: Ids
    row: dict[str, Any]
    wire: Wire | None = None
    request: Request | None = None
    continues: Turn | None = None

    @cached_property
    def whole(self) -> Ids:
        return np.concatenate([self.prompt, self.output])

    @property
    def call_id(self) -> int:
        return int(self.row["call_id"])


@dataclass
class Seen:
    """A run, turn by turn in the order of asking, and the tables of its lake.

    `joined`: requests that were the same as one that was running.
    """

    outcome: Outcome
    turns: list[Turn]
    tables: Tables
    violations: dict[str, int]
    faults: list[str] = field(default_factory=list)
    joined: int = 0

    def after(self, label: str) -> Turn | None:
        """The turn that was asked next by whom a line was said to."""
        for k, turn in enumerate(self.turns):
            if turn.line.label == label:
                return next((t for t in self.turns[k + 1 :] if t.role == turn.role), None)
        return None

    def said(self, label: str) -> Turn | None:
        return next((t for t in self.turns if t.line.label == label), None)


def _tables(run: Run) -> tuple[Tables, dict[str, int]]:
    """The tables that are looked at, and the audits with rows."""
    with closing(open_lake(str(run.path))) as lake:
        names = ("calls", "nodes", "trees", "event_tools", "weights")
        tables = {name: lake.arrow(name).to_pylist() for name in names}
        return tables, {name: rows.num_rows for name, rows in lake.audit().items() if rows.num_rows}


def _whole_by_call(nodes: list[dict[str, Any]], trees: list[dict[str, Any]]) -> dict[int, Ids]:
    """Each call's whole sequence, read from the lake's prefix tree."""
    tokens = np.asarray(trees[0]["token_ids"], np.int32) if trees else np.zeros(0, np.int32)
    by_node = {n["node"]: n for n in nodes}
    last = {n["call_id"]: n for n in sorted(nodes, key=lambda n: n["depth_end"])}
    found = {}
    for call_id, node in last.items():
        parts, at = [], node
        while at is not None:
            n = at["depth_end"] - at["depth_start"]
            parts.append(tokens[at["tree_start"] : at["tree_start"] + n])
            at = by_node.get(at["parent_node"])
        found[call_id] = np.concatenate(parts[::-1])
    return found


def observe(outcomes: Mapping[str, Outcome]) -> dict[str, Seen]:
    """Put the records of a client's runs together.  What does not fit together is in `faults`."""
    tables, violations = _tables(next(iter(outcomes.values())).run)
    seen = {}
    for name, outcome in outcomes.items():
        mine = {t: [r for r in rows if r["execution_id"] == f"e-{name}"] for t, rows in tables.items()}
        seen[name] = _observe(Seen(outcome, [], mine, violations))
    return seen


def _observe(seen: Seen) -> Seen:
    outcome, tables = seen.outcome, seen.tables
    kept = _whole_by_call(tables["nodes"], tables["trees"])
    rows = {r["call_id"]: r for r in tables["calls"]}
    for role, line, asked in outcome.asked:
        if not asked.output_ids or asked.aborted:
            continue  # a try that the engine did not answer
        prompt, output = np.asarray(asked.ids, np.int32), np.asarray(asked.output_ids, np.int32)
        whole = np.concatenate([prompt, output])
        found = next((c for c, ids in kept.items() if np.array_equal(ids, whole)), None)
        if found is None:
            seen.faults.append(f"the lake has no call with the ids of {line.label!r} ({role})")
            continue
        del kept[found]
        seen.turns.append(Turn(role, line, prompt, output, rows[found]))
    seen.faults += [f"the lake's call {c} has ids that the engine never saw" for c in kept]
    _with_wires(outcome, seen)
    for k, turn in enumerate(seen.turns):
        earlier = [t for t in seen.turns[:k] if common(turn.prompt, t.whole) == len(t.whole)]
        turn.continues = max(earlier, key=lambda t: len(t.whole), default=None)
    return seen


def _with_wires(outcome: Outcome, seen: Seen) -> None:
    """Give each turn its request: the proxy stamps a call when it takes its request up.

    A client that sends the same request while it runs joins the call (pi asks for a summary twice at once).
    """
    seen.faults += [f"{w.path} got {w.status}" for w in outcome.wires if w.status != 200]
    asked: list[tuple[Wire, Request]] = []
    for wire in outcome.calls:
        request = DIALECTS[wire.path.rsplit("/", 1)[1]].parse(wire.body, wire.headers)
        same = [w for w, r in asked if _asks_the_same(r, request) and w.ended > wire.began]
        if same:
            seen.joined += 1
        elif wire.status == 200:
            asked.append((wire, request))
    if len(asked) != len(seen.turns):
        seen.faults.append(f"{len(asked)} requests got an answer, the engine gave {len(seen.turns)}")
        return
    by_start = sorted(seen.turns, key=lambda t: (t.row["started_us"], t.call_id))
    for turn, (wire, request) in zip(by_start, asked, strict=True):
        turn.wire, turn.request = wire, request


def _asks_the_same(a: Request, b: Request) -> bool:
    return (a.messages, a.tools, a.options, a.model) == (b.messages, b.tools, b.options, b.model)


def came_back(turn: Turn, later: Turn) -> Message | None:
    """The message in which a later request holds a turn's answer."""
    if turn.request is None or later.request is None:
        return None
    at = len(turn.request.messages)
    messages = later.request.messages
    return messages[at] if at < len(messages) and messages[at].role == "assistant" else None


def results_of(turn: Turn, later: Turn) -> list[Message]:
    """The tools' messages that follow a turn's answer in a later request."""
    found = []
    for message in (
        later.request.messages[len(turn.request.messages) + 1 :] if turn.request and later.request else ()
    ):
        if message.role != "tool":
            break
        found.append(message)
    return found


# ------------------------------------------------------------------- how a turn came back
def _exact(text: str) -> Any:
    """JSON with numbers as they are written and members in order."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=lambda pairs: ("object", pairs))


def arguments_changed(ours: str, theirs: str) -> list[str]:
    """What differs between a call's arguments as they were sampled and as they came back."""
    if ours == theirs:
        return []
    try:
        before, after = _exact(ours), _exact(theirs)
    except ValueError:
        return ["replaced"]
    if before == after:
        return ["re-serialised"]
    try:
        kinds_before, kinds_after = dict(before[1]), dict(after[1])
    except (TypeError, IndexError, ValueError):
        return ["replaced"]
    if kinds_before.keys() != kinds_after.keys():
        gone, new = kinds_before.keys() - kinds_after.keys(), kinds_after.keys() - kinds_before.keys()
        return ["replaced"] if len(gone) == len(kinds_before) else [
            *(f"`{k}` dropped" for k in sorted(gone)), *(f"`{k}` added" for k in sorted(new))
        ]  # fmt: skip
    changed = ["re-serialised"]
    if list(kinds_before) != list(kinds_after):
        changed.append("keys reordered")
    if any(kinds_before[k] != kinds_after[k] for k in kinds_before):
        same = all(_number(kinds_before[k]) == _number(kinds_after[k]) for k in kinds_before)
        changed.append("numbers rewritten" if same else "values changed")
    return changed


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def text_changed(ours: str, theirs: str | None) -> str:
    """ "kept", "trimmed", "dropped" or "edited"."""
    theirs = theirs or ""
    if ours == theirs:
        return "kept"
    if not theirs.strip():
        return "dropped"
    return "trimmed" if ours.strip() == theirs.strip() else "edited"
