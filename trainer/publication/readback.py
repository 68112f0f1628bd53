"""Whether an engine serves what was published: two checks, of what each can see.

Tensors, while the engine is still paused: its checksum of each tensor before and after.  One whose values
differ between the two versions (as the engine's dtype) must have another checksum, any other must keep its
own: so a version that was not taken and a part that was left out are seen, however little the weights moved.
It needs no knowledge of how the engine computes a checksum, nor of how its ranks share a tensor.  Where
the old checksum is the one that both engines compute on a CPU (the head of a sha256), the new one must be it
too, and every bit is checked.  An engine that has no checksums, or quantises what it is sent, is not
checked so.

Log-probabilities, once the engine computes again: it samples after a fixed prompt, and the trainer scores
what it sampled, with its own weights and its own arithmetic.  That sees wrong values, wrong names, a wrong
export, a model that computes something else, and not what moves them by less than the engine's rounding.
Sampled tokens are what training is about, and likely: of unlikely ones bf16 is a poor judge (a logit of
20 is known to a sixteenth: random ids were 0.15 apart on SGLang).  Their mean is judged, not the largest,
which one unlikely token decides: under sharp random weights 0.14 where the mean was 0.01; other weights are
apart by whole nats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from trainer.publication.engine import PublishError

PROMPT_TOKENS_MAX = 16
SAMPLED_TOKENS_MAX = 48
PROBE_SEED = 20817
ORDINARY = 0.9  # of the vocabulary: control tokens and unused rows lie behind

_ORDER = ("q", "k", "v", "gate", "up")
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


def part_of_fused(name: str) -> tuple[str, int, str]:
    """Sorts the tensors of a model so that parts of one come behind each other, in its order."""
    order = next((i for i, part in enumerate(_ORDER) if f".{part}_proj." in name), 0)
    return served_name(name), order, name


def check_tensors(
    url: str,
    *,
    old: Mapping[str, str],
    new: Mapping[str, str],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> None:
    """old, new: the sums of two versions (`Folder.sums`), before, after: the engine's (`RANK NAME`).

    Raises PublishError for tensors that did not follow.  {} is an engine that has no checksums.
    """
    changed: dict[str, bool] = {}
    wrong: set[str] = set()
    for key in before.keys() & after.keys():
        name = key.split(" ", 1)[1]
        if name not in new or name not in old:
            continue
        changed[name] = changed.get(name, False) or before[key] != after[key]
        if old[name].startswith(before[key]) and not new[name].startswith(after[key]):
            wrong.add(name)
    stale = {name for name in changed if old[name] != new[name] and not changed[name]}
    wrong = (wrong | {name for name in changed if old[name] == new[name] and changed[name]}) - stale
    if stale or wrong:
        moved = sum(old[name] != new[name] for name in changed)
        raise PublishError(
            f"engine {url} does not serve what was sent: {len(stale)} of {moved} tensors kept their old "
            f"values, {len(wrong)} have others than they should: {', '.join(sorted(stale | wrong)[:3])}"
        )


class Difference(NamedTuple):
    """How far two scores are apart, in nats."""

    mean: float
    largest: float


def difference(engine: np.ndarray, trainer: np.ndarray) -> Difference:
    """Of two scores of the probe; infinite where one is missing or not finite."""
    if engine.shape != trainer.shape or not engine.size or not np.isfinite(engine).all():
        return Difference(float("inf"), float("inf"))
    apart = np.abs(engine - trainer)
    return Difference(float(apart.mean()), float(apart.max()))
