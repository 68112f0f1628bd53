"""Which recorded turns do the messages of a request repeat?

A turn is what the policy answered; a *place* is where it hangs: the digest of the messages that were
asked, each turn among them by the number of its call, chained.  So a place stands for a whole path of
messages in 16 bytes: it is in the call's event, and a proxy that is started again knows every turn's.

An assistant message is a turn where its tool calls have the ids that the proxy gave them, in order, and
what was said is the same; a turn without tool calls is known by its place and its text.  Where the
harness changed a call's name or arguments (white space, key order, escapes, numbers) the ids decide and
the change is noted.  Reasoning that does not come back is no difference; reasoning that was edited is one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from ingest.matching import Ids
from ingest.proxy.neutral import Message, ToolCall
from lake.events import PLACE_BYTES

ROOT = bytes(PLACE_BYTES)
_MINTED = re.compile(r"call_([0-9]{6,})_([0-9]{2,})")

SENT, LOST, UNKNOWN = "sent", "lost", "unknown"
"""Of a reply: written to a client that was there; not; the proxy was started again since."""


def digest(text: str) -> bytes:
    """Of a text, 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=PLACE_BYTES).digest()


def chained(place: bytes, step: bytes) -> bytes:
    """The place after one more message."""
    return hashlib.blake2b(place + step, digest_size=PLACE_BYTES).digest()


def minted(call_id: int, number: int) -> str:
    """The id of a call's tool call, from 0: no other in the execution has it, and it can be made again."""
    return f"call_{call_id:06d}_{number:02d}"


@lru_cache(1 << 16)
def of_minted(tool_call_id: str) -> tuple[int, int] | None:
    """(call id, number) of an id that the proxy gave; None of any other."""
    found = _MINTED.fullmatch(tool_call_id)
    return (int(found[1]), int(found[2])) if found and len(tool_call_id) < 40 else None


@dataclass(slots=True, eq=False)
class Turn:
    """One answer of the policy: what tells whether a message is it, and what makes the reply again.

    `body`: length and digest of the rendering that it answered, None where only the end of it was made.
    `shape`: digest of the tools and options it was asked with.  Both are None of one read from the log.
    `key`: the digest of its request, b"" likewise.
    """

    call_id: int
    role: str
    place: bytes
    output_ids: Ids
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str
    thinking: bool
    said: bytes
    thought: bytes | None
    calls: tuple[tuple[str, bytes], ...]  # (name, digest of the arguments; b"" where not known)
    body: tuple[int, bytes] | None
    key: bytes
    finished_us: int
    shape: bytes | None = None
    reply: str = UNKNOWN
    sent_us: int = 0
    returned: set[int] = field(default_factory=set)  # numbers of the calls whose result has been seen
    back: tuple[int, list[str]] | None = None  # a message that is this turn: its hash, and what changed in it
    after: bytes = field(init=False)  # the place that follows

    def __post_init__(self) -> None:
        self.after = chained(self.place, b"turn %d" % self.call_id)

    @property
    def ids(self) -> list[str]:
        return [minted(self.call_id, k) for k in range(len(self.calls))]


@dataclass(slots=True)
class Match:
    """How far a request repeats the history.

    `turns`: by message index, the turns on its path.  `restored`: turns of other paths that the messages
    hold again, known by the ids of their tool calls.  `places`: after each message.  `depth`: messages on
    a known path.  `difference`: what differs first, "" where the history simply goes on.  `repeats`: the
    same was asked before.  `changes`: calls that came back rewritten.
    """

    turns: dict[int, Turn]
    restored: dict[int, Turn]
    places: list[bytes]
    depth: int
    difference: str
    repeats: bool
    changes: list[str]
    marks: list[tuple[str, bytes, int]]  # role, digest of the text, and hash, of each message

    @property
    def place(self) -> bytes:
        return self.places[-1] if self.places else ROOT


@dataclass(slots=True)
class _Place:
    """What was asked at a place, and what followed."""

    asked: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


def _rewritten(turn: Turn, message: Message) -> list[str]:
    changes = []
    for ours, (name, arguments), theirs in zip(turn.ids, turn.calls, message.calls, strict=True):
        if name != theirs.name:
            changes.append(f"{ours} came back with the name {theirs.name!r}")
        elif arguments and arguments != digest(theirs.arguments):
            changes.append(f"{ours} came back with other arguments")
    return changes


def _differs(turn: Turn, message: Message) -> str:
    """What keeps a message from being this turn; "" where it is.  Ends that were trimmed do not count."""
    ours, theirs = turn.ids, [c.id for c in message.calls]
    if ours != theirs:
        return f"tool calls {', '.join(theirs) or 'none'} for {', '.join(ours) or 'none'}"
    said = message.text.strip()
    if (said or not ours) and digest(said) != turn.said:
        return "text differs"
    thought = (message.reasoning or "").strip()
    return "reasoning differs" if thought and digest(thought) != turn.thought else ""


def _beside_a_turn(where: str, turn: Turn, message: Message) -> str:
    if message.role != "assistant":
        return f"{where} comes where call {turn.call_id} answered: its answer was dropped"
    return f"{where}: {_differs(turn, message)} from the answer of call {turn.call_id}"


def _beside_a_message(where: str, earlier: _Followed, mark: tuple[str, bytes, int]) -> str:
    (role, text, _), call_id, _ = earlier
    if role != mark[0]:
        return f"{where} comes where call {call_id} had one of role {role}"
    if text != mark[1]:
        return f"{where}: text differs from call {call_id}"
    return f"{where}: differs from call {call_id} in what is not its text"


_Followed = tuple[tuple[str, bytes, int], int, bytes]
"""What came after a place: its mark (see Match), the call that brought it, the place after it."""

_encode = msgspec.msgpack.Encoder().encode


def _step(message: Message, text: bytes) -> bytes:
    """A message that is no turn, as a step of a path; whether its tool failed is no part of what is read."""
    return text + _encode((message.role, message.reasoning, message.calls, message.call_id, message.name))


class History:
    """The turns of one execution, and the places that were asked.

    A message of a known path is known again by its hash (64 bits, with the process's own key), so that a long
    history that comes back costs little more than being read.
    """

    def __init__(self) -> None:
        self.turns: dict[int, Turn] = {}
        self._places: dict[bytes, _Place] = {}
        self._followed: dict[bytes, _Followed] = {}

    def match(self, messages: Sequence[Message]) -> Match:
        """The recorded path that the messages repeat, and what they know beyond it."""
        place, depth = ROOT, 0
        match = Match({}, {}, [], 0, "", False, [], [])
        for index, message in enumerate(messages):
            seen = hash(message)
            turn: Turn | None = None
            changes: list[str] = []
            if message.role == "assistant" and message.calls:
                turn, changes = self._by_ids(message, seen)
            elif message.role == "assistant":
                turn = self._here(place, index, messages)
            if turn is not None:
                text = turn.said if turn.place == place else digest(message.text)
                match.marks.append((message.role, text, seen))
                (match.turns if turn.place == place else match.restored)[index] = turn
                match.changes += changes
                place = turn.after if turn.place == place else chained(place, b"turn %d" % turn.call_id)
            else:
                mark, place = self._next(place, message, seen)
                match.marks.append(mark)
            match.places.append(place)
            if index in match.turns or (depth == index and self._known(place)):
                depth = index + 1
        match.depth = depth
        match.repeats = place in self._places and bool(self._places[place].asked)
        match.difference = self._difference(match, messages)
        return match

    def _known(self, place: bytes) -> bool:
        return place in self._followed or place in self._places

    def _next(self, place: bytes, message: Message, seen: int) -> tuple[tuple[str, bytes, int], bytes]:
        """(mark, place after it) of a message that is no turn."""
        known = self._followed.get(place)
        if known is not None and known[0][2] == seen and known[0][0] == message.role != "assistant":
            return known[0], known[2]
        text = digest(message.text)
        return (message.role, text, seen), chained(place, _step(message, text))

    def _by_ids(self, message: Message, seen: int) -> tuple[Turn | None, list[str]]:
        """(the turn that a message with tool calls is, what changed in it)."""
        found = of_minted(message.calls[0].id)
        turn = self.turns.get(found[0]) if found else None
        if turn is not None and turn.back is not None and turn.back[0] == seen:
            return turn, turn.back[1]
        if turn is None or _differs(turn, message):
            return None, []
        turn.back = seen, _rewritten(turn, message)
        return turn, turn.back[1]

    def _here(self, place: bytes, index: int, messages: Sequence[Message]) -> Turn | None:
        """The turn of a place that a message without tool calls is.

        Where several say the same: the one that the rest has followed before, else the newest.
        """
        at = self._places.get(place)
        found = [t for t in at.turns if not _differs(t, messages[index])] if at else []
        if len(found) > 1 and index + 1 < len(messages):
            following = messages[index + 1]
            step = _step(following, digest(following.text))
            went_on = [t for t in found if self._known(chained(t.after, step))]
            found = went_on or found
        return found[-1] if found else None

    def _difference(self, match: Match, messages: Sequence[Message]) -> str:
        depth = match.depth
        place = match.places[depth - 1] if depth else ROOT
        at = self._places.get(place, _Place())
        if depth == len(messages):
            if at.asked:
                return f"the same messages as call {at.asked[-1]}"
            return f"the messages end at {depth}, where earlier calls went on" if depth else ""
        where = f"message {depth} ({messages[depth].role})"
        if at.turns:
            return _beside_a_turn(where, at.turns[-1], messages[depth])
        if place in self._followed:
            return _beside_a_message(where, self._followed[place], match.marks[depth])
        return ""  # new ground: after an answer, or the first request of all

    def asked(self, call_id: int, match: Match) -> None:
        """A call was recorded that asked what `match` is of."""
        for index in range(match.depth, len(match.places)):
            before = match.places[index - 1] if index else ROOT
            self._followed[before] = match.marks[index], call_id, match.places[index]
        self._places.setdefault(match.place, _Place()).asked.append(call_id)

    def answered(self, turn: Turn) -> None:
        """Keep what a call was answered, before it goes out to the harness."""
        self.turns[turn.call_id] = turn
        self._places.setdefault(turn.place, _Place()).turns.append(turn)

    def recall(self, call_id: int, place: bytes) -> None:
        """A call in the log asked at this place."""
        self._places.setdefault(place, _Place()).asked.append(call_id)

    def unsent(self, place: bytes, role: str, key: bytes) -> Turn | None:
        """The turn of the same request whose reply has not arrived, as far as is known; the newest."""
        at = self._places.get(place)
        for turn in reversed(at.turns if at else []):
            if turn.role == role and turn.key in (b"", key) and turn.reply != SENT:
                return turn
        return None

    @property
    def lost(self) -> Iterable[Turn]:
        """The turns whose reply did not go out, in the order of their calls."""
        return (t for t in self.turns.values() if t.reply == LOST)


def calls_of(turn: Turn, parsed: Iterable[tuple[str, str]]) -> tuple[ToolCall, ...]:
    """A turn's calls with their ids, as they go out."""
    return tuple(ToolCall(i, name, arguments) for i, (name, arguments) in zip(turn.ids, parsed, strict=True))
