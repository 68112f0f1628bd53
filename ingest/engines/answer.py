"""What an engine answered, checked.

EngineError
├── EngineUnavailable   not reached, gone in between, busy, a 5xx: another try, or another engine, may help
├── EngineBusy          no place at any engine, and the wait for one is over
└── EngineRefused       the engine said no (4xx), or answered what cannot be trusted: final
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.engines.model import Experts
from lake.events import VersionSpan


class EngineError(Exception):
    """An engine did not do what it was asked."""


class EngineUnavailable(EngineError):
    """Trying again, here or elsewhere, may help."""


class EngineBusy(EngineError):
    """The call waited for a place as long as it may."""


class EngineRefused(EngineError):
    """Trying again does not help: the sentence says what to change."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine sampled.

    One log-probability an id, of the temperature-scaled distribution before any filter.  A stop token is
    the last id.  `spans` covers the ids, or is empty where the engine does not say; `weight_version` is
    that of the last token.  `engine` is the URL of the one that answered, "" where none did.

    `experts`, where they were asked for: row i is what the routers of all layers chose at token
    `experts_start` + i of prompt and output together; the last token is not among them, since it was sampled
    and never fed.  None where they were not asked for, or the call ended as `abort` before there were any.
    """

    output_ids: np.ndarray  # int32 (n,)
    output_logprobs: np.ndarray  # float32 (n,)
    finish_reason: Literal["stop", "length", "abort"]
    spans: tuple[VersionSpan, ...]
    cached_tokens: int | None
    weight_version: int | None
    engine: str = ""
    experts: npt.NDArray[np.int16] | None = None  # (prompt + output - 1 - start, layers, top_k)
    experts_start: int = 0


class Routing(NamedTuple):
    """What was asked of the routed experts: of `prompt` tokens and what follows, from `start` on."""

    experts: Experts
    prompt: int
    start: int


class _Finish(msgspec.Struct):
    type: Literal["stop", "length", "abort"]
    message: str | None = None
    matched: int | str | None = None


class _Span(msgspec.Struct):
    version: str | int | None
    start: int
    end: int


class _Meta(msgspec.Struct):
    finish_reason: _Finish
    output_token_logprobs: list[tuple[float | None, int | None, Any]] | None = None
    weight_version: str | int | None = None
    weight_versions: list[_Span] | None = None
    cached_tokens: int | None = None
    routed_experts: bytes | None = None  # base64 of int32, in order of the shape


class _Answer(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


NOT_A_NUMBER = "NaN happened"  # SGLang's word, in the place of a stop string

_answers = msgspec.json.Decoder(_Answer)


def version_of(text: str | int | None) -> int | None:
    """SGLang's own start value is `default`: no version anybody gave, so unknown."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _pairs(answer: _Answer, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and log-probabilities, each of the other's token, none missing."""
    n, triples = len(answer.output_ids), answer.meta_info.output_token_logprobs
    if triples is None and n:
        raise EngineRefused(f"output_token_logprobs is missing for {n} output ids")
    triples = triples or []
    if len(triples) != n:
        raise EngineRefused(f"output_token_logprobs has {len(triples)} entries for {n} output ids")
    paired = [token for _, token, _ in triples]
    if paired != answer.output_ids:
        i = next(i for i in range(n) if paired[i] != answer.output_ids[i])
        raise EngineRefused(
            f"output token {i} is id {answer.output_ids[i]}, its log-probability is of id {paired[i]}"
        )
    logprobs = np.array([logprob for logprob, _, _ in triples], np.float64)  # None turns into NaN
    if not np.isfinite(logprobs).all():
        i = int((~np.isfinite(logprobs)).argmax())
        raise EngineRefused(f"output token {i} (id {paired[i]}) has log-probability {triples[i][0]}")
    ids = np.array(paired, np.int64)
    if n and np.maximum.reduce(ids.view(np.uint64)) >= bound:  # one below 0 is 2**63 at least
        raise EngineRefused(f"output ids run from {ids.min()} to {ids.max()}; 0 to {bound - 1} is possible")
    return ids.astype(np.int32), logprobs.astype(np.float32)


def _spans(meta: _Meta, n: int) -> tuple[VersionSpan, ...]:
    spans = tuple(VersionSpan(version_of(s.version), s.start, s.end) for s in meta.weight_versions or ())
    at = 0
    for span in spans:
        if span.start != at or span.end < span.start:
            raise EngineRefused(f"weight_versions has a span {span.start}..{span.end} after token {at}")
        at = span.end
    if spans and at != n:
        raise EngineRefused(f"weight_versions covers {at} of {n} output tokens")
    return tuple(span for span in spans if span.end > span.start)  # SGLang has one of no token for no token


def _experts(meta: _Meta, n: int, routing: Routing) -> npt.NDArray[np.int16] | None:
    experts, prompt, start = routing
    if meta.routed_experts is None:
        if meta.finish_reason.type == "abort":
            return None
        raise EngineRefused(
            "routed_experts is missing: start SGLang with --enable-return-routed-experts, or ask for none"
        )
    rows = max(0, prompt + n - 1 - start)
    size, needed = len(meta.routed_experts), rows * experts.layers * experts.top_k * 4
    if size != needed:
        raise EngineRefused(
            f"routed_experts has {size} bytes; {rows} rows of {experts.layers} layers by "
            f"{experts.top_k} experts are {needed}"
        )
    ids = np.frombuffer(meta.routed_experts, np.int32)
    if ids.size and np.maximum.reduce(ids.view(np.uint32)) >= experts.count:
        raise EngineRefused(
            f"routed_experts runs from {ids.min()} to {ids.max()}; the model has {experts.count}"
        )
    return ids.astype(np.int16).reshape(rows, experts.layers, experts.top_k)


def read_answer(body: bytes, *, vocab_size: int | None, routing: Routing | None = None) -> Generation:
    """A generation out of the JSON of `/generate`.  `routing`: the experts that were asked for.

    Raises EngineRefused where ids and log-probabilities do not stand for each other one by one, a
    log-probability is missing or not finite, an id is outside the vocabulary, spans leave a gap, experts
    are missing or of another shape.
    """
    try:
        answer = _answers.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineRefused(f"the engine's answer does not decode: {error}") from error
    meta = answer.meta_info
    if meta.finish_reason.matched == NOT_A_NUMBER:
        raise EngineRefused("the engine computed what is no number, and put a stop token in its place")
    ids, logprobs = _pairs(answer, 2**31 if vocab_size is None else vocab_size)
    spans = _spans(meta, len(ids))
    version = version_of(meta.weight_version)
    return Generation(
        output_ids=ids,
        output_logprobs=logprobs,
        finish_reason=meta.finish_reason.type,
        spans=spans,
        cached_tokens=meta.cached_tokens,
        weight_version=spans[-1].version if version is None and spans else version,
        experts=_experts(meta, len(ids), routing) if routing else None,
        experts_start=routing.start if routing else 0,
    )
