"""A request's token ids: what was sampled stays as it was sampled, only the new is tokenised.

The messages are rendered with places where recorded turns stand.  Up to the last turn whose
rendering is the recorded one, character for character, the recorded ids are taken whole; behind it
the text between turns is tokenised, and each turn is the ids that the engine sampled.  So a template
that would drop or trim an earlier turn (its reasoning, say) never touches one: turns are kept.

A request that goes on from a known turn, under the same tools and options, has the messages before it
that were asked then.  So only what follows that turn is rendered, where the template allows (windows.py),
and its cost is that of what is new; every now and then it is held against a rendering of the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass

import msgspec
import numpy as np

from ingest.matching import Ids, Matcher
from ingest.proxy.history import Match, Turn, digest
from ingest.proxy.neutral import Rejected, Request
from ingest.proxy.rendering import Rendered, Renderer, RenderingError


@dataclass(frozen=True)
class Prompt:
    """Ids int32 (n,) for the engine, and what the record needs to know of how they came about.

    `body`: length and digest of the rendering; None where only its end was made.
    """

    ids: Ids
    base: int | None  # the call whose whole sequence they begin with
    difference: str
    body: tuple[int, bytes] | None
    shape: bytes  # digest of the tools and options
    thinking: bool


def _opened(text: str, generation: str, think: tuple[str, str]) -> str:
    """Text before a turn, with the whole of what opened the turn when it was sampled, and no more.

    Templates open earlier turns otherwise than they ask a generation: `<think>` is missing, or an empty
    think block stands there.
    """
    head = generation.partition(think[0])[0]
    start = text.rfind(head) if head.strip() else -1
    if start >= 0 and not text[start + len(head) :].replace(think[0], "").replace(think[1], "").strip():
        return text[:start] + generation
    for n in range(len(generation), 0, -1):
        if text.endswith(generation[:n]):
            return text + generation[n:]
    return text


def _after(turn: Turn, ids: Ids, stop_ids: tuple[int, ...]) -> Ids:
    """The ids that follow a turn: a sampled stop token that also begins what follows counts once."""
    output = turn.output_ids
    if len(output) and len(ids) and output[-1] in stop_ids and output[-1] == ids[0]:
        return ids[1:]
    return ids


def _base(rendered: Rendered, match: Match) -> tuple[int | None, str]:
    """(index of the last turn up to which the rendering is the recorded one, what changed after it)."""
    difference = ""
    for index, turn in sorted(match.turns.items(), reverse=True):
        if turn.body is None:  # of another process: its ids are compared one by one
            continue
        length, recorded = turn.body
        if len(rendered.text) >= length and digest(rendered.text[:length]) == recorded:
            return index, difference
        difference = f"the rendering before message {index} is not that of call {turn.call_id}"
    return None, difference


def _ids(rendered: Rendered, match: Match, base: int | None, matcher: Matcher, renderer: Renderer) -> Ids:
    turns = match.turns | match.restored
    parts: list[Ids] = [] if base is None else [matcher.whole(turns[base].call_id)]
    pieces = renderer.pieces(rendered.text)
    for k, piece in enumerate(pieces):
        if base is not None and (piece.turn is None or piece.turn < base):
            continue
        turn = None if piece.turn is None else turns[piece.turn]
        if turn and piece.turn != base:
            parts.append(turn.output_ids)
        last = k + 1 == len(pieces)
        text = piece.text if last else _opened(piece.text, rendered.generation, renderer.form.think)
        ids = renderer.encode(text)
        parts.append(_after(turn, ids, renderer.stop_ids) if turn else ids)
    return np.concatenate(parts)


def _thinking(rendered: Rendered, renderer: Renderer) -> bool:
    return rendered.text[-64:].rstrip().endswith(renderer.form.think[0])


def _shape(request: Request) -> bytes:
    return hashlib.blake2b(msgspec.json.encode((request.tools, request.options)), digest_size=16).digest()


def _end(
    request: Request, match: Match, base: int, places: Set[int], renderer: Renderer, *, now_us: int
) -> Rendered | None:
    """The rendering from turn `base` on, without what is before it; None where the whole must be made."""
    if not renderer.windowed:
        return None
    arguments = (request.messages, base, request.tools, request.options)
    turns = {i for i in places if i >= base}
    try:
        end = renderer.render_after(*arguments, now_us=now_us, turns=turns)
        known = len(match.turns)
        if known & (known - 1):  # held against the whole at 1, 2, 4, 8, ... turns
            return end
        if end.text == renderer.after(*arguments, now_us=now_us, turns=set(places), short=False):
            return end
    except RenderingError:
        return None
    renderer.windowed = False
    return None


def make_prompt(
    request: Request, match: Match, matcher: Matcher, renderer: Renderer, *, now_us: int
) -> Prompt:
    """The ids of a request.  Raises Rejected (400) where the template refuses the messages."""
    note, shape = "", _shape(request)
    places = match.turns.keys() | match.restored.keys()
    last = max(match.turns, default=-1)
    if last >= 0 and match.turns[last].shape == shape:
        end = _end(request, match, last, places, renderer, now_us=now_us)
        if end is not None:
            return Prompt(
                ids=_ids(end, match, last, matcher, renderer),
                base=match.turns[last].call_id,
                difference=match.difference,
                body=None,
                shape=shape,
                thinking=_thinking(end, renderer),
            )
    try:
        try:
            rendered = renderer.render(
                request.messages, request.tools, request.options, now_us=now_us, turns=places
            )
        except RenderingError as error:
            if not places:
                raise
            note = f"turns are rendered from their messages: {error}"
            match.turns, match.restored = {}, {}
            rendered = renderer.render(request.messages, request.tools, request.options, now_us=now_us)
    except RenderingError as error:
        raise Rejected(400, "messages_not_renderable", str(error)) from error
    base, changed = _base(rendered, match)
    ids = _ids(rendered, match, base, matcher, renderer)
    body = rendered.body
    return Prompt(
        ids=ids,
        base=None if base is None else match.turns[base].call_id,
        difference=match.difference or note or changed,
        body=(len(body), digest(body)),
        shape=shape,
        thinking=_thinking(rendered, renderer),
    )
