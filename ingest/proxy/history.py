"""Which recorded turns do the messages of a request repeat?

A tree of messages for each execution.  A turn (what the policy answered) hangs where its request
ended.  An assistant message that comes back is the same turn where its tool calls have the ids that
the proxy minted, in order, and what was said is the same; where the harness changed a call's name or
arguments (white space, key order, escapes, numbers) the ids decide and the change is noted.
Reasoning that does not come back at all is no difference; reasoning that was edited is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingest.matching import Ids
from ingest.proxy.neutral import Message, ToolCall


@dataclass(slots=True, eq=False)
class Turn:
    """One answer of the policy.  `body` is the length and the digest of the rendering it answered."""

    call_id: int
    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    output_ids: Ids
    body: tuple[int, bytes]
    node: Node = field(repr=False)


@dataclass(slots=True, eq=False)
class Node:
    """The place after a list of messages: what was asked here, and what followed."""

    followed: dict[Message, Node] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    first_call: int = -1  # the call that brought the message in
    restored: Turn | None = None  # a turn of another path, whose sampled ids stand here


@dataclass(slots=True)
class Match:
    """How far a request repeats the history.

    `turns`: by message index, the turns on the common path.  `restored`: turns of other paths that
    the messages hold again, known by the ids of their tool calls.  `depth`: messages on the path.
    `difference`: what differs first, "" where the history simply goes on.  `repeats`: the same
    messages were asked before.  `changes`: calls that came back rewritten.
    """

    turns: dict[int, Turn]
    restored: dict[int, Turn]
    depth: int
    difference: str
    repeats: bool
    changes: list[str]


def _first_difference(a: str, b: str) -> str:
    same, differs = 0, min(len(a), len(b)) + 1  # a[:same] == b[:same]; not so at `differs`
    while differs - same > 1:
        middle = (same + differs) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differs = middle
    return f"at character {same}"


def _rewritten(turn: Turn, message: Message) -> list[str]:
    changes = []
    for ours, theirs in zip(turn.calls, message.calls, strict=True):
        if ours.name != theirs.name:
            changes.append(f"{ours.id} came back with the name {theirs.name!r}")
        elif ours.arguments != theirs.arguments:
            changes.append(f"{ours.id} came back with other arguments")
    return changes


def _differs(turn: Turn, message: Message) -> str:
    """What keeps a message from being this turn; "" where it is.  Ends that were trimmed do not count."""
    ours, theirs = [c.id for c in turn.calls], [c.id for c in message.calls]
    if ours != theirs:
        return f"tool calls {', '.join(theirs) or 'none'} for {', '.join(ours) or 'none'}"
    said, sent = turn.text.strip(), message.text.strip()
    if said != sent and (sent or not ours):
        return f"text differs {_first_difference(turn.text, message.text)}"
    if message.reasoning is not None and (sent := message.reasoning.strip()):
        thought = (turn.reasoning or "").strip()
        if thought != sent:
            return f"reasoning differs {_first_difference(thought, sent)}"
    return ""


def _beside_a_turn(where: str, turn: Turn, message: Message) -> str:
    if message.role != "assistant":
        return f"{where} comes where call {turn.call_id} answered: its answer was dropped"
    return f"{where}: {_differs(turn, message)} from the answer of call {turn.call_id}"


def _beside_a_message(where: str, earlier: Message, call_id: int, message: Message) -> str:
    if earlier.role != message.role:
        return f"{where} comes where call {call_id} had one of role {earlier.role}"
    if earlier.text != message.text:
        return f"{where}: text differs {_first_difference(earlier.text, message.text)} from call {call_id}"
    return f"{where}: differs from call {call_id} in what is not its text"


class History:
    """The messages and turns of one execution."""

    def __init__(self) -> None:
        self._root = Node()
        self._by_tool_call: dict[str, Turn] = {}

    def match(self, messages: Sequence[Message]) -> Match:
        """The longest recorded path that the messages repeat, and what they know beyond it."""
        node, depth = self._root, 0
        turns: dict[int, Turn] = {}
        restored: dict[int, Turn] = {}
        changes: list[str] = []
        for index, message in enumerate(messages):
            turn = self._turn(node, message) if message.role == "assistant" else None
            following = turn.node if turn else node.followed.get(message)
            if following is None:
                break
            if turn:
                turns[index] = turn
                changes += _rewritten(turn, message)
            elif following.restored:
                restored[index] = following.restored
            node, depth = following, index + 1
        for index, message in enumerate(messages[depth:], depth):
            known = self._by_tool_call.get(message.calls[0].id) if message.calls else None
            if known and not _differs(known, message):
                restored[index] = known
                changes += _rewritten(known, message)
        repeats = depth == len(messages) and bool(node.asked)
        return Match(turns, restored, depth, self._difference(node, depth, messages), repeats, changes)

    @staticmethod
    def _turn(node: Node, message: Message) -> Turn | None:
        """The newest turn here that the message is."""
        return next((t for t in reversed(node.turns) if not _differs(t, message)), None)

    @staticmethod
    def _difference(node: Node, depth: int, messages: Sequence[Message]) -> str:
        if depth == len(messages):
            if node.asked:
                return f"the same messages as call {node.asked[-1]}"
            return f"the messages end at {depth}, where earlier calls went on" if depth else ""
        message = messages[depth]
        where = f"message {depth} ({message.role})"
        if node.turns:
            return _beside_a_turn(where, node.turns[-1], message)
        if node.followed:
            earlier, following = next(reversed(node.followed.items()))
            return _beside_a_message(where, earlier, following.first_call, message)
        return ""  # new ground: after an answer, or the first request of all

    def add(self, call_id: int, messages: Sequence[Message], match: Match) -> Node:
        """The place where a call asked.  `match` is of the same messages, made any time before."""
        node = self._root
        for index, message in enumerate(messages):
            if index in match.turns:
                node = match.turns[index].node
            else:
                if message not in node.followed:
                    node.followed[message] = Node(first_call=call_id, restored=match.restored.get(index))
                node = node.followed[message]
        node.asked.append(call_id)
        return node

    def answer(self, place: Node, turn: Turn) -> None:
        """Hang the answer that a call got where it asked, before it goes out to the harness."""
        place.turns.append(turn)
        for call in turn.calls:
            self._by_tool_call[call.id] = turn

    def take_back(self, place: Node, turn: Turn) -> None:
        """The answer did not reach the harness after all: nothing can continue it."""
        place.turns.remove(turn)
        for call in turn.calls:
            self._by_tool_call.pop(call.id, None)
