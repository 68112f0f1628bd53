"""docs/harnesses.md, made from the runs: what each client did, and how to start it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.harnesses.clients import load
from tests.harnesses.frame import Client
from tests.harnesses.install import PACKAGES
from tests.harnesses.observing import Seen, Turn, arguments_changed, came_back, results_of, text_changed

Runs = Mapping[str, Seen]
"""A client's runs by name."""

MARKER = b"__unparsedToolInput"
"""Where arguments that are no JSON lie in Anthropic Messages, as Claude Code writes them."""
ROLES = ("main", "sub-agent", "main-summary", "sub-agent-summary", "auxiliary")
HEAD = """\
# Harnesses behind the capture proxy

Each client below ran unmodified and headless against the proxy (a scripted policy behind it, a scratch HOME,
loopback only), and `tests/harnesses/` checked what the lake then held: roles, each tool call and its
arguments byte for byte, one call a request, and for every call, recomputed from the ids that the engine saw:
its prompt begins with prompt and output of the call it goes on after, or branches where the client did not.
This page is made from such a run:

    python -m tests.harnesses --write docs/harnesses.md
"""
RAN = """\
## What ran

A call goes on where its prompt begins with all ids of an earlier call; a branch shares fewer.
"""
BACK = """\
## How answers come back

Whatever a client makes of a call, its id decides: the ids that were sampled stand in the next prompt.
"""
DOES = """\
## What clients do

An engine that fails (it drops the connection, then answers 500) or is silent is one slow call to them.
"""
START = """\
## How to start them

The value of `--harness` for `headrace rollout`, with what lies in its HOME (`--home FOLDER`).  By hand it is
the same command in the environment that `headrace execution new RUN --task ID --env` prints.
"""


def page(clients: Mapping[str, tuple[Client, Runs]], before: str = "") -> str:
    """The whole page, in Markdown.  Clients that did not run keep their rows of the page `before`."""
    shown = [name for name in PACKAGES if name in clients or _rows_of(name, before)]
    tables = []
    for k, row_of in enumerate((_ran, _back, _does)):
        rows = {name: row_of(*clients[name]) for name in clients}
        columns = list(next(iter(rows.values())))
        lines = [_line(columns), _line(["---"] * len(columns))]
        lines += [_line(rows[name].values()) if name in rows else _rows_of(name, before)[k] for name in shown]
        tables.append("\n".join(lines) + "\n")
    parts = [HEAD, RAN, tables[0], BACK, tables[1], DOES, tables[2], START]
    return "\n".join(parts + [_start(client) for client in map(load, shown) if client.rollout])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _rows_of(name: str, before: str) -> list[str]:
    """A client's rows of an earlier page, one a table."""
    rows = [line for line in before.splitlines() if line.startswith(f"| {name} ")]
    return rows if len(rows) == 3 else []


def _turns(runs: Runs) -> Iterator[tuple[Seen, Turn]]:
    return ((seen, turn) for seen in runs.values() for turn in seen.turns)


def _said(runs: Runs, label: str) -> tuple[Seen, Turn] | None:
    """The first turn of a line, in the first run that has it."""
    return next(((s, t) for s, t in _turns(runs) if t.line.label == label), None)


def _name(client: Client) -> str:
    return f"{client.name} {PACKAGES[client.name].version}"


# ----------------------------------------------------------------------------- what ran
def _ran(client: Client, runs: Runs) -> dict[str, str]:
    turns = [turn for _, turn in _turns(runs)]
    relations = [turn.row["relation"] for turn in turns]
    roles = {turn.row["role"] for turn in turns}
    exits = {name: seen.outcome.exit for name, seen in runs.items()}
    odd = ", ".join(f"{code} ({name})" for name, code in exits.items() if code)
    joined = sum(seen.joined for seen in runs.values())
    return {
        "client": _name(client),
        "dialect": ", ".join(dict.fromkeys(t.request.dialect for t in turns if t.request)),
        "streams": _streams(turns),
        "runs": str(len(runs)),
        "calls": str(len(turns)) + (f" (and {joined} joined)" if joined else ""),
        "goes on": str(relations.count("extends")),
        "branches": str(relations.count("branches")),
        "begins anew": str(relations.count("restarts")),
        "roles": ", ".join(r for r in ROLES if r in roles),
        "exit status": odd or "0",
    }


def _streams(turns: Sequence[Turn]) -> str:
    asked = [turn for turn in turns if turn.request]
    streamed = {bool(turn.request and turn.request.stream) for turn in asked}
    if len(streamed) == 1:
        return "always" if streamed.pop() else "never"
    held = sorted({t.row["role"] for t in asked if t.request and not t.request.stream})
    return f"not: {', '.join(held)}" if "main" not in held else "both"


# ------------------------------------------------------------------- how answers come back
def _back(client: Client, runs: Runs) -> dict[str, str]:
    return {
        "client": _name(client),
        "arguments": _odd(runs, "arguments"),
        "reasoning": _odd(runs, "reasoning"),
        "text": _odd(runs, "text"),
        "results of parallel calls": _odd(runs, "results"),
        "malformed arguments": _refused(runs, "malformed"),
        "an unknown tool": _refused(runs, "unknown tool"),
    }


def _odd(runs: Runs, what: str) -> str:
    """Of the answer with odd arguments and two calls at once, over all runs that have it."""
    found: list[str] = []
    for seen, turn in _turns(runs):
        later = seen.after(turn.line.label) if turn.line.label == "odd and parallel" else None
        message = came_back(turn, later) if later else None
        if message and later:
            calls = zip(turn.line.calls, message.calls, strict=False)
            sent = [r.call_id for r in results_of(turn, later)]
            changes = [c for ours, theirs in calls for c in arguments_changed(ours[1], theirs.arguments)]
            found += {
                "arguments": changes or ["byte for byte"],
                "reasoning": [text_changed(turn.line.reasoning, message.reasoning)],
                "text": [text_changed(turn.line.shown, message.text)],
                "results": ["in order" if sent == [c.id for c in message.calls] else "in another order"],
            }[what]
    return ", ".join(dict.fromkeys(found)) or "-"


def _refused(runs: Runs, label: str) -> str:
    """What became of a call that no client can run as it stands."""
    said = _said(runs, label)
    later = said[0].after(label) if said else None
    if not said or not later:
        return "-"
    turn, message = said[1], came_back(said[1], later)
    if later.continues is not turn or message is None or not message.calls:
        return "turn dropped: a branch"
    (name, arguments), theirs = turn.line.calls[0], message.calls[0]
    changes = arguments_changed(arguments, theirs.arguments)
    told = [f"as a call of `{theirs.name}`"] if theirs.name != name else []
    if label == "malformed" and later.wire and MARKER in later.wire.body:
        told.append(f"inside `{MARKER.decode()}`")
    elif "replaced" in changes:
        told.append("replaced by " + ", ".join(f"`{k}`" for k in _keys(theirs.arguments)))
    else:
        told += changes or ["byte for byte"]
    results = " ".join(m.text.replace("echo bad", "") for m in results_of(turn, later))
    if label == "malformed" and re.search(r"(^|Output: )bad$", results, re.M):
        told.append("repaired and run")
    return ", ".join(told)


def _keys(arguments: str) -> list[str]:
    try:
        found = json.loads(arguments)
    except ValueError:
        return []
    return list(found) if isinstance(found, dict) else []


# -------------------------------------------------------------------------- what clients do
def _does(client: Client, runs: Runs) -> dict[str, str]:
    return {
        "client": _name(client),
        "sub-agent": _part(runs, "sub-agent"),
        "compaction": _compaction(runs),
        "empty reply": _ending(runs, "empty"),
        "token limit": _ending(runs, "cut"),
        "engine fails": _one_answer(runs, "failing"),
        "engine silent": _one_answer(runs, "slow"),
        "silent for ten minutes": _one_answer(runs, "ten-minutes"),
    }


def _part(runs: Runs, role: str) -> str:
    first = next((t for _, t in _turns(runs) if t.row["role"] == role), None)
    if first is None:
        return "-"
    return f"{first.row['relation']}, {first.row['shared_len']:,} of {len(first.prompt):,} ids shared"


def _compaction(runs: Runs) -> str:
    for seen, turn in _turns(runs):
        if turn.row["role"] == "main-summary":
            later = next((t for t in seen.turns[seen.turns.index(turn) :] if t.row["role"] == "main"), None)
            goes_on = f"; the next call {later.row['relation']}" if later else ""
            return f"its call {turn.row['relation']} ({turn.row['shared_len']:,} ids shared){goes_on}"
    return "-"


def _ending(runs: Runs, label: str) -> str:
    said = _said(runs, label)
    if said is None:
        return "-"
    seen, turn = said
    later = seen.after(label)
    if later is None:
        return f"ends, exit status {seen.outcome.exit}"
    if later.continues is turn:
        return "goes on after it"
    return "asks the same again: a branch" if len(later.prompt) == len(turn.prompt) else "drops it: a branch"


def _one_answer(runs: Runs, name: str) -> str:
    seen = runs.get(name)
    if seen is None:
        return "-"
    outcome = seen.outcome
    answers = sum(bool(turn.line.faults or turn.line.slow_s) for turn in seen.turns)
    requests = len(outcome.calls) - (len(seen.turns) - answers)
    took = "" if name == "failing" else f" in {outcome.seconds:.0f} s"
    return f"{requests} request, {answers} answer{took}, exit status {outcome.exit}"


# ------------------------------------------------------------------------------- to start
def _start(client: Client) -> str:
    files = "".join(f"\n`{path}`:\n\n```\n{text.rstrip()}\n```\n" for path, text in client.home.items())
    return f"### {client.name}\n\n```\n{client.rollout}\n```\n{files}"
