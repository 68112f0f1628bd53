"""What must hold of every run, whatever the client."""

from __future__ import annotations

from tests.harnesses.frame import Told
from tests.harnesses.observing import Seen, Turn, common


def check(seen: Seen) -> list[str]:
    """What does not hold, a sentence each; none where all is well."""
    faults = list(seen.faults)
    outcome = seen.outcome
    if outcome.exit != outcome.flight.exit:
        faults.append(
            f"exit status {outcome.exit}, {outcome.flight.exit} is expected; it said: {outcome.output[-999:]}"
        )
    faults += [f"the audit {name} has {n} rows" for name, n in seen.violations.items()]
    faults += _once(seen) + _roles(seen) + _tree(seen) + _tools(seen) + _expected(seen)
    return faults + outcome.client.also(seen)


def _once(seen: Seen) -> list[str]:
    counts = {
        "the engine answered": len(seen.turns),
        "the lake holds": len(seen.tables["calls"]),
        "closing counted": seen.outcome.calls_closed,
    }
    faults = [f"calls differ: {counts}"] if len(set(counts.values())) > 1 else []
    lost = [t.call_id for t in seen.turns if not t.row["delivered"] or t.row["retry_of"] is not None]
    faults += [f"call {c} is undelivered or a retry" for c in lost]
    return faults + ([] if seen.tables["weights"] else ["the group did not become ready"])


def _roles(seen: Seen) -> list[str]:
    faults = [
        f"call {t.call_id} ({t.line.label}) has role {t.row['role']}, {t.role} was speaking"
        for t in seen.turns
        if t.row["role"] != t.role
    ]
    trained = {n["call_id"] for n in seen.tables["nodes"] if n["trainable"]}
    return faults + [
        f"call {t.call_id} is auxiliary and trained"
        for t in seen.turns
        if t.role == "auxiliary" and t.call_id in trained
    ]


def _tree(seen: Seen) -> list[str]:
    """Parents, lengths and relations, recomputed from the engine's ids."""
    faults = []
    by_call = {t.call_id: t for t in seen.turns}
    for turn in seen.turns:
        row = turn.row
        earlier = [t for t in seen.turns if t.call_id < turn.call_id]
        shared = max((common(turn.prompt, t.whole) for t in earlier), default=0)
        if row["shared_len"] != shared:
            faults.append(
                f"call {turn.call_id} shares {row['shared_len']} ids, {shared} are common with an earlier"
            )
        parent = by_call.get(row["parent_call_id"]) if row["parent_call_id"] is not None else None
        if (parent is None) != (shared == 0) or (parent and common(turn.prompt, parent.whole) < shared):
            faults.append(
                f"call {turn.call_id} has the parent {row['parent_call_id']}, which does not have its ids"
            )
        if row["n_context"] != len(turn.prompt) - shared or row["n_output"] != len(turn.output):
            faults.append(
                f"call {turn.call_id}: {row['n_context']} ids of context, {row['n_output']} of output"
            )
        if (row["relation"] == "extends") != (
            turn.continues is not None and shared == len(turn.continues.whole)
        ):
            faults.append(
                f"call {turn.call_id} ({turn.line.label}) {row['relation']}, by its ids it "
                f"{'continues an answer' if turn.continues else 'does not continue one'}"
            )
    held = sum(n["depth_end"] - n["depth_start"] for n in seen.tables["nodes"])
    own = sum(t.row["n_context"] + t.row["n_output"] for t in seen.turns)
    return faults + ([] if held == own else [f"nodes hold {held} ids, calls {own}"])


def _tools(seen: Seen) -> list[str]:
    """Ids are unique over all roles; arguments are those that were sampled, byte for byte."""
    tools = seen.tables["event_tools"]
    ids = [t["tool_call_id"] for t in tools]
    faults = [f"tool-call ids repeat: {sorted(ids)}"] if len(set(ids)) != len(ids) else []
    by_call = {t.call_id: t for t in seen.turns}
    for tool in tools:
        turn = by_call.get(tool["call_id"])
        calls = turn.line.calls if turn else ()
        if (tool["name"], bytes(tool["arguments"]).decode()) not in calls:
            faults.append(
                f"tool call {tool['tool_call_id']} is not what was sampled: {bytes(tool['arguments'])!r}"
            )
    for turn in seen.turns:
        sent = [c.id for m in turn.request.messages for c in m.calls] if turn.request else []
        if len(set(sent)) != len(sent):
            faults.append(f"call {turn.call_id} holds a tool-call id twice: {sent}")
    return faults


def story(turns: list[Turn]) -> Told:
    """What is told of every call."""
    return tuple((t.role, t.line.label, t.row["relation"]) for t in turns)


def _expected(seen: Seen) -> list[str]:
    flight = seen.outcome.flight
    wanted = flight.expected
    found = tuple(t for t in story(seen.turns) if t in wanted or t not in flight.optional)
    if flight.in_any_order:
        found, wanted = tuple(sorted(found)), tuple(sorted(wanted))
    if found == wanted:
        return []
    listed = "\n".join(f"    {f}" for f in found)
    return [f"the client's calls were\n{listed}\n  expected were\n" + "\n".join(f"    {w}" for w in wanted)]
