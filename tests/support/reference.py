"""What the models must say, worked out the long way: token by token, with sets and plain loops.

A token is (call id, depth).  Nothing here knows of ranges: nodes are read off the tree of tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from lake import events as ev
from tests.support.recorder import Recorder

Token = tuple[int, int]
CLASSES = ("main", "main-summary", "sub-agent", "sub-agent-summary")


@dataclass
class Execution:
    group: str
    name: str
    index: int
    attempt: int
    status: str | None = None
    n_calls: int = 0
    calls: dict[int, ev.ModelCalled] = field(default_factory=dict)
    undelivered: set[int] = field(default_factory=set)
    score: ev.ExecutionScored | None = None

    @property
    def valid(self) -> bool:
        return self.status not in (None, "lost") and self.score is not None and self.score.value is not None

    # ---------------------------------------------------------------------------------- the tree
    def __post_init__(self) -> None:
        self.path: dict[int, list[Token]] = {}  # call -> every token of its whole sequence

    def build(self) -> None:
        for c in sorted(self.calls):
            call = self.calls[c]
            before = self.path[call.parent_call_id][: call.shared_len] if call.shared_len else []
            own = [(c, call.shared_len + i) for i in range(call.n_context + call.n_output)]
            self.path[c] = before + own
        self.tokens = sorted({t for path in self.path.values() for t in path})
        self.up: dict[Token, Token | None] = {}
        for path in self.path.values():
            self.up.update(zip(path, [None, *path], strict=False))
        self.down: dict[Token, list[Token]] = {t: [] for t in self.tokens}
        for t, parent in self.up.items():
            if parent is not None:
                self.down[parent].append(t)

    def sampled(self, t: Token) -> bool:
        call = self.calls[t[0]]
        return t[1] >= call.shared_len + call.n_context

    def trainable(self, t: Token) -> bool:
        call = self.calls[t[0]]
        return (
            self.sampled(t)
            and call.delivered
            and t[0] not in self.undelivered
            and call.output_logprobs is not None
            and call.role != "auxiliary"
            and self.status != "lost"
        )

    def starts(self, t: Token) -> bool:
        parent = self.up[t]
        return (
            parent is None
            or parent[0] != t[0]
            or self.sampled(parent) != self.sampled(t)
            or len(self.down[parent]) > 1
        )

    def node(self, t: Token) -> Token:
        while not self.starts(t):
            t = self.up[t]
        return t

    def route(self, t: Token) -> list[Token]:
        out = [t]
        while self.up[out[-1]] is not None:
            out.append(self.up[out[-1]])
        return out[::-1]

    def leaves(self) -> dict[Token, Token]:
        """Leaf node -> its last token."""
        passed: set[Token] = set()
        for t in self.tokens:
            if self.calls[t[0]].role != "auxiliary":
                passed.update(self.route(t)[:-1])
        ends = [t for t in self.tokens if t not in passed and self.calls[t[0]].role != "auxiliary"]
        return {self.node(t): t for t in ends}

    # ----------------------------------------------------------------------------------- admission
    def admit(
        self, seed: int, j_max: int, roles: Sequence[str] = CLASSES
    ) -> list[tuple[Token, set[Token], list[Token]]]:
        """(leaf, targets, the path's tokens) of each admitted path; roles: the first class first."""
        masked: set[Token] = set()
        out: list[tuple[Token, set[Token], list[Token]]] = []
        leaves = {leaf: end for leaf, end in self.leaves().items() if self.calls[leaf[0]].role in roles}
        leaves = leaves if self.valid else {}
        while not j_max or len(out) < j_max:
            best = None
            for leaf, end in leaves.items():
                path = self.route(end)
                new = {t for t in path if self.trainable(t)} - masked
                if new:
                    text = f"{seed}|{self.name}|{len(out) + 1}|{number(leaf)}"
                    digest = int.from_bytes(hashlib.md5(text.encode()).digest(), "little")
                    key = -math.log(((digest >> 75) + 0.5) / 2**53) / len(new)
                    rank = (roles.index(self.calls[leaf[0]].role), key, leaf)
                    best = min(best or (rank, new, path), (rank, new, path), key=lambda b: b[0])
            if best is None:
                break
            (_, _, leaf), new, path = best
            out.append((leaf, new, path))
            masked |= set(path)
        return out


def number(t: Token) -> int:
    return t[0] << 32 | t[1]


def events_in_order(recorder: Recorder) -> list[tuple[int, ev.Event]]:
    """(offset, event) with each event id once, the first time; what others refer to comes first."""
    seen: dict[str, tuple[int, ev.Event]] = {}
    for topic in ("groups", "executions", "calls", "scores"):
        for record, event in recorder.rows[topic]:
            seen.setdefault(event.event_id, (record.offset, event))
    return list(seen.values())


def read(recorder: Recorder) -> list[Execution]:
    """The current execution of each place, its calls and its assessment, from events in log order."""
    all_: dict[str, Execution] = {}
    ends: dict[str, float] = {}
    for offset, event in events_in_order(recorder):
        x = all_.get(getattr(event, "execution_id", ""))
        match event:
            case ev.GroupReady(set_name="default"):
                ends[event.group_id] = event.scores_end
            case ev.ExecutionLaunched():
                new = Execution(event.group_id, event.execution_id, event.index, event.attempt)
                all_[event.execution_id] = new
            case ev.ExecutionFinished():
                x.status, x.n_calls = event.status, event.calls
            case ev.ReplyUndelivered():
                x.undelivered.add(event.call_id)
            case ev.ModelCalled() if event.call_id < x.n_calls:
                x.calls[event.call_id] = event
            case ev.ExecutionScored() if offset < ends.get(x.group, math.inf):
                if x.score is None or event.version >= x.score.version:
                    x.score = event
    newest: dict[tuple[str, int], Execution] = {}
    for x in sorted(all_.values(), key=lambda x: x.attempt):
        newest[x.group, x.index] = x
    out = sorted(newest.values(), key=lambda x: (x.group, x.name))
    for x in out:
        x.build()
    return out


def advantages(executions: list[Execution], form: str) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for group in {x.group for x in executions}:
        members = sorted((x for x in executions if x.group == group), key=lambda x: x.index)
        values = [x.score.value for x in members if x.valid]
        for x in members:
            if not x.valid:
                out[x.name] = None
            elif len(set(values)) < 2:
                out[x.name] = 0.0
            else:
                mean = fmean(values)
                spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
                out[x.name] = (x.score.value - mean) / (spread if form == "standardised" else 1.0)
    return out
