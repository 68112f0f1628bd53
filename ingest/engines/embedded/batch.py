"""What a step computes, and for whom: continuous batching over slots.

A call's slot holds `known` tokens (prompt, then output); the keys of the first `length` are computed.
One step feeds each call some of the tokens between, and a call all of whose tokens are fed gets one
more.  A call in its decoding phase is simply one with a single token to feed.

    WAITING -> RUNNING -> FINISHED       retract: RUNNING -> WAITING with its output kept

Shapes: S slots, C places of a slot, A calls with a token to sample.
"""

from __future__ import annotations

from collections import deque
from copy import copy

import msgspec
import numpy as np
import torch

from ingest.engines.embedded.decoder import Chunk, Decoder
from ingest.engines.embedded.sampling import draw, uniforms
from ingest.engines.embedded.slots import Slots
from ingest.engines.embedded.weights import Weights

STEP_TOKENS_MAX = 2048  # fed in one step, so that a long prompt does not hold up the others for long
STOP_IDS_MAX = 64
_LOGIT_ROWS_MAX = 256  # prompt log-probabilities are computed this many places at a time


class Call(msgspec.Struct, kw_only=True):
    """A request and its state.  The batch's from `add` until it comes back finished."""

    rid: str
    prompt: np.ndarray  # int32, not empty
    new_tokens_max: int
    new_tokens_min: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    prompt_logprobs_start: int = -1  # from this place on (exclusive); -1: none
    stream: bool = False
    slot: int = -1
    known: int = 0
    cached: int | None = None
    retractions: int = 0
    switches: list[tuple[int, int]] = []  # (version, first output token), ascending
    output_ids: np.ndarray = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    output_logprobs: np.ndarray = msgspec.field(default_factory=lambda: np.empty(0, np.float32))
    prompt_logprobs: np.ndarray = msgspec.field(default_factory=lambda: np.empty(0, np.float32))
    finish: str = ""  # stop | length | abort
    detail: str = ""

    def spans(self) -> list[tuple[int, int, int]]:
        """(version, start, end) over the output tokens; spans without a token are left out."""
        if not self.switches:  # it never ran
            return []
        ends = [start for _, start in self.switches[1:]] + [len(self.output_ids)]
        return [(v, a, b) for (v, a), b in zip(self.switches, ends, strict=True) if b > a]


class Batch:
    """Calls in flight on one decoder.  Not for several threads.

    - At most `calls_max` run; the others wait in order of arrival.
    - `step` returns the calls that finished and, of calls that stream, a copy with the new token.
    - A call's tokens depend on its prompt, parameters, seed and the weights, not on its neighbours
      (beyond rounding).
    """

    def __init__(self, weights: Weights, *, version: int, slots: int, places: int, calls_max: int) -> None:
        self.decoder = Decoder(weights, slots=slots, places=places)
        self.slots = Slots(slots, places)
        self.version, self.calls_max = version, calls_max
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}  # by slot, in order of admission
        self.prompt_tokens = self.cached_tokens = self.sampled_tokens = 0
        self._logp_SC = np.zeros((slots, places), np.float32)
        self._known_S, self._limit_S, self._floor_S, self._prompt_S = np.zeros((4, slots), np.int64)
        self._temperature_S, self._top_p_S, self._min_p_S = np.zeros((3, slots))
        self._top_k_S, self._key_S = np.zeros(slots, np.int64), np.zeros(slots, np.uint64)
        self._stops_SI = np.full((slots, STOP_IDS_MAX), -1, np.int64)

    # ------------------------------------------------------------------------------ calls come and go
    def add(self, call: Call) -> None:
        """Queue a call; prompt and output must fit the places, ids the vocabulary (the caller checks)."""
        self.waiting.append(call)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.calls_max:
            call = self.waiting[0]
            ids = np.concatenate([call.prompt, call.output_ids])
            reuse_max = len(ids) - 1
            if call.prompt_logprobs_start >= 0:
                reuse_max = min(reuse_max, call.prompt_logprobs_start)
            hold = self.slots.take(ids, reuse_max)
            if hold is None:
                return
            self.waiting.popleft()
            if hold.source != hold.slot:
                self.decoder.copy(hold.source, hold.slot, hold.cached)
            self._seat(call, hold.slot, len(ids))
            if call.cached is None:
                call.cached = hold.cached
                self.prompt_tokens += len(ids)
                self.cached_tokens += hold.cached

    def _seat(self, call: Call, s: int, known: int) -> None:
        call.slot = s
        self.running[s] = call
        prompt = len(call.prompt)
        self._known_S[s], self._prompt_S[s] = known, prompt
        self._limit_S[s], self._floor_S[s] = prompt + call.new_tokens_max, prompt + call.new_tokens_min
        self._temperature_S[s], self._top_p_S[s], self._min_p_S[s] = call.temperature, call.top_p, call.min_p
        self._top_k_S[s], self._key_S[s] = call.top_k, np.uint64(call.seed)
        self._stops_SI[s] = -1
        self._stops_SI[s, : len(call.stop_ids)] = call.stop_ids
        self._logp_SC[s, prompt:known] = call.output_logprobs
        if not call.switches:
            call.switches = [(self.version, 0)]

    def _collect(self, call: Call) -> None:
        """The output so far, from the slot into the call."""
        s, a, b = call.slot, len(call.prompt), int(self._known_S[call.slot])
        call.output_ids = self.slots.tokens_SC[s, a:b].copy()
        call.output_logprobs = self._logp_SC[s, a:b].copy()
        if call.prompt_logprobs_start >= 0 and self.slots.length_S[s] >= a:
            call.prompt_logprobs = self._logp_SC[s, call.prompt_logprobs_start + 1 : a].copy()

    def _leave(self, call: Call, finish: str, detail: str = "") -> Call:
        self._collect(call)
        call.finish, call.detail = finish, detail
        del self.running[call.slot]
        self.slots.give(call.slot)
        return call

    def abort(self, rid: str | None, why: str) -> list[Call]:
        """Take out the call of this id (None: every call), with what it has so far."""
        out = [self._leave(c, "abort", why) for c in list(self.running.values()) if rid in (None, c.rid)]
        for call in [c for c in self.waiting if rid in (None, c.rid)]:
            self.waiting.remove(call)
            call.finish, call.detail = "abort", why
            out.append(call)
        return out

    def retract(self) -> int:
        """Running calls wait again, ahead of the others, and are computed anew; returns their number."""
        calls = list(self.running.values())
        for call in reversed(calls):
            self._collect(call)
            self.slots.drop(call.slot)
            call.retractions += 1
            call.slot = -1
            self.waiting.appendleft(call)
        self.running.clear()
        return len(calls)

    def replace(self, weights: Weights, version: int, *, flush: bool) -> None:
        """Go on under other weights: tokens sampled from now on carry `version`."""
        self.decoder.weights, self.version = weights, version
        for call in self.running.values():
            output = int(self._known_S[call.slot]) - len(call.prompt)
            call.switches = [*call.switches, (version, output)]  # a copy that streams keeps its own
        for call in self.waiting:
            if call.switches:  # retracted
                call.switches = [*call.switches, (version, len(call.output_ids))]
        if flush:
            self.slots.flush()

    # ------------------------------------------------------------------------------------------- a step
    @torch.inference_mode()
    def step(self) -> list[Call]:
        """Feed and sample once.  Returns calls that finished, and streaming ones with a new token."""
        self._admit()
        if not self.running:
            return []
        active = np.fromiter(self.running, np.int64, len(self.running))
        length_S, known_S = self.slots.length_S, self._known_S
        single = known_S[active] - length_S[active] == 1
        singles = active[single]
        chunks = self._chunks(active[~single], len(singles))
        slots = [singles] + [np.full(c.stop - c.start, c.slot) for c in chunks]
        places = [length_S[singles]] + [np.arange(c.start, c.stop) for c in chunks]
        slot_N, place_N = np.concatenate(slots), np.concatenate(places)
        ids_N = self.slots.tokens_SC[slot_N, place_N].astype(np.int64)
        x_ND = self.decoder.forward(ids_N, slot_N, place_N, chunks=chunks)
        length_S[singles] += 1
        for c in chunks:
            length_S[c.slot] = c.stop
            self._score_prompt(c, x_ND)
        whole = [c for c in chunks if c.stop == known_S[c.slot]]
        slot_A = np.concatenate([singles, np.array([c.slot for c in whole], np.int64)])
        rows = np.concatenate(
            [np.arange(len(singles)), np.array([c.row + c.stop - c.start - 1 for c in whole], np.int64)]
        )
        if not slot_A.size:
            return []
        return self._sample(slot_A, x_ND[torch.from_numpy(rows)])

    def _chunks(self, slots: np.ndarray, row: int) -> list[Chunk]:
        chunks = []
        for s in slots.tolist():
            start = int(self.slots.length_S[s])
            stop = min(int(self._known_S[s]), start + STEP_TOKENS_MAX - row)
            if stop <= start:
                break
            chunks.append(Chunk(s, row, start, stop))
            row += stop - start
        return chunks

    def _score_prompt(self, c: Chunk, x_ND: torch.Tensor) -> None:
        """Raw log-probabilities of the prompt tokens that follow this chunk's places, where asked for."""
        call = self.running[c.slot]
        if call.prompt_logprobs_start < 0:
            return
        end = min(c.stop, len(call.prompt) - 1)
        for a in range(c.start, end, _LOGIT_ROWS_MAX):
            b = min(a + _LOGIT_ROWS_MAX, end)
            logp = self.decoder.logits(x_ND[c.row + a - c.start : c.row + b - c.start]).log_softmax(-1)
            following = torch.from_numpy(self.slots.tokens_SC[c.slot, a + 1 : b + 1].astype(np.int64))
            self._logp_SC[c.slot, a + 1 : b + 1] = logp.gather(-1, following[:, None])[:, 0].numpy()

    def _sample(self, slot_A: np.ndarray, x_AD: torch.Tensor) -> list[Call]:
        open_A = self._known_S[slot_A] < self._limit_S[slot_A]  # a call for 0 tokens is over already
        done = [self._leave(self.running[s], "length") for s in slot_A[~open_A].tolist()]
        slot_A, x_AD = slot_A[open_A], x_AD[torch.from_numpy(open_A)]
        if not slot_A.size:
            return done
        known_A, stops_AI = self._known_S[slot_A], self._stops_SI[slot_A]
        logits_AV = self.decoder.logits(x_AD)
        a, i = np.nonzero((stops_AI >= 0) & (known_A < self._floor_S[slot_A])[:, None])
        if a.size:
            logits_AV[a, stops_AI[a, i]] = -torch.inf
        token_A, logp_A = draw(
            logits_AV,
            temperature_R=self._temperature_S[slot_A],
            top_p_R=self._top_p_S[slot_A],
            top_k_R=self._top_k_S[slot_A],
            min_p_R=self._min_p_S[slot_A],
            uniform_R=uniforms(self._key_S[slot_A], (known_A - self._prompt_S[slot_A]).astype(np.uint64)),
        )
        self.slots.tokens_SC[slot_A, known_A] = token_A
        self._logp_SC[slot_A, known_A] = logp_A
        self._known_S[slot_A] += 1
        self.sampled_tokens += len(slot_A)
        stopped_A = (stops_AI == token_A[:, None]).any(1)
        over_A = stopped_A | (known_A + 1 >= self._limit_S[slot_A])
        for s, stopped in zip(slot_A[over_A].tolist(), stopped_A[over_A].tolist(), strict=True):
            done.append(self._leave(self.running[s], "stop" if stopped else "length"))
        for call in [self.running[s] for s in slot_A[~over_A].tolist() if self.running[s].stream]:
            self._collect(call)
            done.append(copy(call))
        return done
