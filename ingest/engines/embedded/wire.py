"""SGLang's `/generate`: a request body to a call, a call to an answer.

Unknown names at the top of a request are ignored, unknown sampling parameters are refused, as SGLang does.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from ingest.engines.embedded.batch import STOP_IDS_MAX, Call
from ingest.engines.embedded.sampling import TEMPERATURE_MIN

RID_CHARS_MAX = 256
_NEW_TOKENS_DEFAULT = 128  # SGLang's; cut to the context where the request names none


class Refused(ValueError):
    """A request that cannot be served as it is; the sentence goes into the answer."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class Sampling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`sampling_params` of SGLang 0.5.23: those computed here, then those that must be neutral."""

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    custom_params: dict[str, Any] | None = None
    n: int = 1
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None

    def check(self) -> None:
        """Raise Refused for a value out of bounds, or for what is not computed here."""
        for name, holds, bound in (
            ("max_new_tokens", self.max_new_tokens is None or self.max_new_tokens >= 0, "0 or more"),
            ("min_new_tokens", self.min_new_tokens >= 0, "0 or more"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "-1 (all) or at least 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("n", self.n == 1, "1"),
            ("stop", not self.stop, "none: give stop_token_ids"),
            ("stop_regex", not self.stop_regex, "none: give stop_token_ids"),
            ("frequency_penalty", self.frequency_penalty == 0, "0"),
            ("presence_penalty", self.presence_penalty == 0, "0"),
            ("repetition_penalty", self.repetition_penalty == 1, "1"),
            ("logit_bias", not self.logit_bias, "none"),
            ("json_schema", self.json_schema is None, "none"),
            ("regex", self.regex is None, "none"),
            ("ebnf", self.ebnf is None, "none"),
            ("structural_tag", self.structural_tag is None, "none"),
        ):
            if not holds:
                raise Refused(f"{name} is {getattr(self, name)!r}; the embedded engine takes {bound}")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise Refused(
                f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}"
            )


class Request(msgspec.Struct, kw_only=True):
    """The body of `/generate`, as far as it is read."""

    input_ids: list[int] | None = None
    sampling_params: Sampling = msgspec.field(default_factory=Sampling)
    rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: int | None = -1
    stream: bool = False


_decoder = msgspec.json.Decoder(Request)


def decode(body: bytes) -> Request:
    """Raises Refused for a body that is not JSON, a wrong type, an unknown sampling parameter."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refused(str(error).replace("Object contains unknown field", "unknown field")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if request.rid is not None and not 0 < len(request.rid) <= RID_CHARS_MAX:
        raise Refused(f"rid has {len(request.rid)} characters, 1 to {RID_CHARS_MAX} are needed")
    request.sampling_params.check()
    return request


def _ids(ids: list[int], what: str, vocabulary: int) -> np.ndarray:
    try:
        wide = np.array(ids, np.int64)
    except OverflowError:
        raise Refused(f"{what} holds an id that is no 64-bit integer") from None
    bad = wide[(wide < 0) | (wide >= vocabulary)]
    if bad.size:
        raise Refused(f"{what} holds id {bad[0]}, outside the vocabulary of {vocabulary}")
    return wide.astype(np.int32)


def call_of(
    request: Request, *, rid: str, vocabulary: int, places: int, eos: tuple[int, ...], seed: int
) -> Call:
    """The call a request asks for.  `seed` serves where the request has no `sampling_seed`.

    Raises Refused for ids outside the vocabulary, and for a prompt (with its new tokens) over `places`.
    """
    p = request.sampling_params
    if not request.input_ids:
        raise Refused("input_ids is missing or empty; the embedded engine takes token ids, not text")
    n = len(request.input_ids)
    if n >= places:
        raise Refused(f"the prompt has {n} tokens, at most {places - 1} fit the context of {places}")
    new = min(_NEW_TOKENS_DEFAULT, places - n) if p.max_new_tokens is None else p.max_new_tokens
    if n + new > places:
        raise Refused(f"{n} prompt tokens and max_new_tokens {new} make {n + new}; the context is {places}")
    stops = set(_ids(p.stop_token_ids or [], "stop_token_ids", vocabulary).tolist()) | set(eos)
    if len(stops) > STOP_IDS_MAX:
        raise Refused(f"{len(stops)} stop ids with those of the model; at most {STOP_IDS_MAX}")
    start = -1 if request.logprob_start_len is None else request.logprob_start_len
    if start > n:
        raise Refused(f"logprob_start_len is {start}, the prompt has {n} tokens")
    return Call(
        rid=rid,
        prompt=_ids(request.input_ids, "input_ids", vocabulary),
        new_tokens_max=new,
        new_tokens_min=p.min_new_tokens,
        temperature=0.0 if p.temperature < TEMPERATURE_MIN else p.temperature,
        top_p=p.top_p,
        top_k=p.top_k,
        min_p=p.min_p,
        seed=(seed if p.sampling_seed is None else p.sampling_seed) & (2**64 - 1),
        stop_ids=() if p.ignore_eos else tuple(sorted(stops)),
        prompt_logprobs_start=start if request.return_logprob and 0 <= start < n else -1,
        stream=request.stream,
    )


def _finish(call: Call) -> dict[str, Any] | None:
    if call.finish == "stop":
        return {"type": "stop", "matched": int(call.output_ids[-1])}
    if call.finish == "length":
        return {"type": "length", "length": len(call.output_ids)}
    if call.finish == "abort":
        return {"type": "abort", "message": call.detail}
    return None


def _triples(logprobs: list[float | None], ids: list[int]) -> list[tuple[float | None, int, None]]:
    return list(zip(logprobs, ids, repeat(None, len(ids)), strict=True))


def _prompt_triples(call: Call) -> list[tuple[float | None, int, None]]:
    """From `logprob_start_len` on; the first has no log-probability, as in SGLang."""
    start = call.prompt_logprobs_start
    if start < 0 or len(call.prompt_logprobs) != len(call.prompt) - start - 1:
        return []  # not asked for, or aborted before the prompt was computed
    return _triples([None, *call.prompt_logprobs.tolist()], call.prompt[start:].tolist())


def answer(
    call: Call, request: Request, *, version: int, latency_s: float, tokenizer: Tokenizer | None
) -> bytes:
    """The JSON answer: final when the call is finished, else what a stream shows so far (cumulative)."""
    ids = call.output_ids.tolist()
    visible = ids[:-1] if call.finish == "stop" and not request.sampling_params.no_stop_trim else ids
    text = ""
    if tokenizer is not None:
        skip = request.sampling_params.skip_special_tokens
        text = tokenizer.decode(visible, skip_special_tokens=skip)
    spans = call.spans()
    meta: dict[str, Any] = {
        "id": call.rid,
        "finish_reason": _finish(call),
        "prompt_tokens": len(call.prompt),
        "completion_tokens": len(ids),
        "cached_tokens": call.cached or 0,
        "weight_version": str(spans[-1][0] if spans else version),
        "weight_versions": [{"version": str(v), "start": a, "end": b} for v, a, b in spans],
        "num_retractions": call.retractions,
        "e2e_latency": latency_s,
    }
    if request.return_logprob:
        meta["output_token_logprobs"] = _triples(call.output_logprobs.tolist(), ids)
        meta["output_token_logprobs_length"] = len(ids)
        meta["input_token_logprobs"] = _prompt_triples(call)
    return msgspec.json.encode({"text": text, "output_ids": ids, "meta_info": meta})
