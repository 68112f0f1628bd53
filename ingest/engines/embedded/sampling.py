"""From logits to tokens, for all rows of a step at once.

Shapes: R rows, V words.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TEMPERATURE_MIN = 1e-6  # below it a call is greedy, as in SGLang


def uniforms(key_R: np.ndarray, count_R: np.ndarray) -> np.ndarray:
    """A float64 in [0, 1) for each (key, count), both uint64: no state, so no row disturbs another.

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014) over key + (count + 1) * golden ratio.
    """
    with np.errstate(over="ignore"):
        z = key_R + (count_R + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    unit: np.ndarray = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return unit


def _keep(p_RV: Tensor, top_p_R: Tensor, top_k_R: Tensor, min_p_R: Tensor) -> Tensor:
    """Probabilities with what the three filters drop set to 0; each filter reads the unfiltered ones.

    top_p keeps the likeliest words until their sum reaches top_p; top_k = -1 keeps all; min_p is
    relative to the likeliest.
    """
    sorted_p, order = p_RV.sort(stable=True, dim=-1, descending=True)
    rank = torch.arange(p_RV.shape[-1])
    before = sorted_p.cumsum(-1) - sorted_p
    drop = before > top_p_R[:, None]
    drop |= (rank >= top_k_R[:, None]) & (top_k_R[:, None] > 0)
    drop |= sorted_p < min_p_R[:, None] * sorted_p[:, :1]
    return torch.zeros_like(p_RV).scatter_(-1, order, sorted_p.masked_fill_(drop, 0.0))


@torch.inference_mode()
def draw(
    logits_RV: Tensor,
    *,
    temperature_R: np.ndarray,
    top_p_R: np.ndarray,
    top_k_R: np.ndarray,
    min_p_R: np.ndarray,
    uniform_R: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """A token of each row (int64) and its log-probability (float32).

    Log-probabilities are of softmax(logits / temperature) before any filter; a temperature of 0 takes
    the likeliest word and its log-probability under the raw logits.  Tokens come by inversion of the
    distribution function at `uniform_R`, so a row's token depends on its own row only.
    """
    greedy = temperature_R < TEMPERATURE_MIN
    divisor = torch.from_numpy(np.where(greedy, 1.0, temperature_R).astype(np.float32))
    logp_RV = (logits_RV / divisor[:, None]).log_softmax(-1)
    p_RV = logp_RV.exp().double()
    filtered = np.nonzero(((top_p_R < 1) | (top_k_R > 0) | (min_p_R > 0)) & ~greedy)[0]
    if filtered.size:
        p_RV[filtered] = _keep(
            p_RV[filtered], *(torch.from_numpy(a[filtered]) for a in (top_p_R, top_k_R, min_p_R))
        )
    below_RV = p_RV.cumsum(-1)
    at_R1 = (torch.from_numpy(uniform_R) * below_RV[:, -1])[:, None]
    token_R = torch.searchsorted(below_RV, at_R1, right=True)[:, 0]
    if greedy.any():
        token_R = torch.where(torch.from_numpy(greedy), logits_RV.argmax(-1), token_R)
    logp_R = logp_RV.gather(-1, token_R[:, None])[:, 0]
    return token_R.numpy(), logp_R.numpy()
