"""The compiled parts of a layer: norms and rotary embedding of heads, and attention of single tokens.

Torch has no attention that reads rows of different lengths where they lie; padding them to the
longest costs more than the arithmetic.  Both kernels run without the interpreter's lock.

Shapes: N tokens of a step, S slots, C places of a slot, H query heads, K key/value heads, E head width.
"""

# ruff: noqa: ANN001, PLR0917  compiled functions take untyped arrays, by place

from __future__ import annotations

import numba
import numpy as np

_compiled = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")


@_compiled  # type: ignore[untyped-decorator]
def _place_head(x_E, norm_E, cos, sin, eps, scale, out_E) -> None:  # type: ignore[no-untyped-def]
    """RMS norm, then rotary embedding (halves paired, as Hugging Face does), then a factor."""
    e = x_E.shape[0]
    half = e // 2
    square = np.float32(0)
    for i in range(e):
        square += x_E[i] * x_E[i]
    factor = scale / np.sqrt(square / np.float32(e) + eps)
    for i in range(half):
        a = x_E[i] * norm_E[i] * factor
        b = x_E[i + half] * norm_E[i + half] * factor
        out_E[i] = a * cos[i] - b * sin[i]
        out_E[i + half] = b * cos[i] + a * sin[i]


@_compiled  # type: ignore[untyped-decorator]
def place(  # type: ignore[no-untyped-def]
    qkv,
    q_norm_E,
    k_norm_E,
    eps,
    cos,
    sin,
    slot_N,
    place_N,
    keys_SKCE,
    values_SKCE,
    q_NHE,
) -> None:
    """Split `qkv` (N, H + 2K, E): keys and values go to their place of the cache, queries to `q_NHE`.

    Queries are scaled by E ** -0.5.  `cos` and `sin` are (C, E / 2).
    """
    n, heads, e = q_NHE.shape
    kv = keys_SKCE.shape[1]
    one, scale = np.float32(1), np.float32(1) / np.sqrt(np.float32(e))
    for t in range(n):
        s, c = slot_N[t], place_N[t]
        for h in range(heads):
            _place_head(qkv[t, h], q_norm_E, cos[c], sin[c], eps, scale, q_NHE[t, h])
        for h in range(kv):
            _place_head(qkv[t, heads + h], k_norm_E, cos[c], sin[c], eps, one, keys_SKCE[s, h, c])
            values_SKCE[s, h, c] = qkv[t, heads + kv + h]


@_compiled  # type: ignore[untyped-decorator]
def attend_one(q_NHE, keys_SKCE, values_SKCE, slot_N, place_N, out_NHE) -> None:  # type: ignore[no-untyped-def]
    """Each token's softmax attention over its slot's places 0..its own, into `out_NHE`."""
    n, heads, e = q_NHE.shape
    group = heads // keys_SKCE.shape[1]
    weight_C = np.empty(keys_SKCE.shape[2], np.float32)
    for t in range(n):
        length = place_N[t] + 1
        for h in range(heads):
            q_E, out_E = q_NHE[t, h], out_NHE[t, h]
            keys_CE = keys_SKCE[slot_N[t], h // group]
            values_CE = values_SKCE[slot_N[t], h // group]
            top = np.float32(-np.finfo(np.float32).max)
            for j in range(length):
                dot = np.float32(0)
                for i in range(e):
                    dot += q_E[i] * keys_CE[j, i]
                weight_C[j] = dot
                top = max(top, dot)
            total = np.float32(0)
            for j in range(length):
                weight_C[j] = np.exp(weight_C[j] - top)
                total += weight_C[j]
            for i in range(e):
                out_E[i] = np.float32(0)
            for j in range(length):
                for i in range(e):
                    out_E[i] += weight_C[j] * values_CE[j, i]
            for i in range(e):
                out_E[i] /= total
