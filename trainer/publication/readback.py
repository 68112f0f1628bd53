"""Whether an engine serves what was published: two checks, of what each can see.

Tensors, while the engine is still paused: the engine's checksum of each tensor before and after.  A tensor
whose values differ between the two versions (as the engine's dtype) must have another checksum, any other
must keep its own.  That sees a version that was not taken and a part that was left out, however little
the weights moved; it does not see values that changed into wrong ones.  It needs no knowledge of how
the engine computes a checksum, nor of how its ranks share a tensor.  An engine that has no checksums,
or quantises what it is sent, is not checked so.

Log-probabilities, once the engine computes again: it samples after a fixed prompt, and the trainer scores
what it sampled, with its own weights and its own arithmetic.  That sees wrong values, wrong names, a wrong
export, a model that computes something else, and not what moves them by less than the engine's rounding.
Sampled tokens are what training is about, and likely: of unlikely ones bf16 is a poor judge (a logit of
20 is rounded to a sixteenth; random ids were 0.15 apart on SGLang where sampled ones were 0.03).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from trainer.publication.engine import PublishError

PROMPT_TOKENS_MAX = 16
SAMPLED_TOKENS_MAX = 48
PROBE_SEED = 20817
ORDINARY = 0.9  # of the vocabulary: control tokens and unused rows lie behind

_FUSED = (
    (re.compile(r"\.experts\.\d+\.(gate|up)_proj\.weight$"), ".experts.w13_weight"),
    (re.compile(r"\.experts\.\d+\.down_proj\.weight$"), ".experts.w2_weight"),
    (re.compile(r"\.[qkv]_proj\.(weight|bias)$"), r".qkv_proj.\1"),
    (re.compile(r"\.(?:gate|up)_proj\.(weight|bias)$"), r".gate_up_proj.\1"),
)


def probe(vocab_size: int, context_tokens: int) -> tuple[np.ndarray, int]:
    """A fixed prompt (int32) of the vocabulary, the same for every version and engine, and how many tokens
    to sample after it."""
    n = max(1, min(PROMPT_TOKENS_MAX, context_tokens // 2))
    ids = np.random.default_rng(PROBE_SEED).integers(0, max(1, int(vocab_size * ORDINARY)), n)
    return ids.astype(np.int32), max(1, min(SAMPLED_TOKENS_MAX, context_tokens - n - 1))


def served_name(name: str) -> str:
    """Under which name an engine keeps a tensor: q, k and v are one there, as are gate and up."""
    for pattern, replacement in _FUSED:
        name, count = pattern.subn(replacement, name)
        if count:
            break
    return name


def check_tensors(
    url: str,
    *,
    old: Mapping[str, str],
    new: Mapping[str, str],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> None:
    """old, new: the sums of two versions' tensors, before, after: the engine's (`RANK NAME`).

    Raises PublishError for tensors that did not follow.  {} is an engine that has no checksums.
    """
    moved = {served_name(name) for name in new if old.get(name) != new[name]}
    changed: dict[str, bool] = {}
    for key in before.keys() & after.keys():
        name = key.split(" ", 1)[1]
        changed[name] = changed.get(name, False) or before[key] != after[key]
    known = {served_name(name) for name in new} & changed.keys()
    stale = sorted(name for name in known if name in moved and not changed[name])
    surplus = sorted(name for name in known if name not in moved and changed[name])
    if stale or surplus:
        raise PublishError(
            f"engine {url} does not serve what was sent: {len(stale)} of {len(moved & known)} tensors kept "
            f"their old values, {len(surplus)} changed that should not: {', '.join((stale + surplus)[:3])}"
        )


def difference(engine: np.ndarray, trainer: np.ndarray) -> float:
    """The largest difference of two scores of the probe; infinite where one is missing or not finite."""
    if engine.shape != trainer.shape or not np.isfinite(engine).all():
        return float("inf")
    return float(np.abs(engine - trainer).max(initial=0.0))
