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
            for i in range(e):
                values_SKCE[s, h, c, i] = qkv[t, heads + kv + h, i]


@_compiled
def _exponentials(x_C, length, top, power_C, bits_C):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """x <- exp(x - top) for the first `length`; gives their sum.  `bits_C` is `power_C` as int32.

    Cephes' `expf` (Moshier 1989): 2**n by the exponent's bits times a polynomial, relative error 2e-7.
    It compiles to vector instructions, a call of the library's exp does not.
    """
    for j in range(length):
        x = max(x_C[j] - top, np.float32(-87.0))
        n = np.floor(x * np.float32(1.44269504088896341) + np.float32(0.5))
        bits_C[j] = (np.int32(n) + np.int32(127)) * np.int32(1 << 23)
        r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        x_C[j] = p * r * r + r + np.float32(1)
    total = np.float32(0)
    for j in range(length):
        x_C[j] *= power_C[j]
        total += x_C[j]
    return total


@_compiled  # type: ignore[untyped-decorator]
def attend_one(q_NHE, keys_SKCE, values_SKCE, slot_N, place_N, out_NHE) -> None:  # type: ignore[no-untyped-def]
    """Each token's softmax attention over its slot's places 0..its own, into `out_NHE`.

    C is a multiple of 4: values are taken four places at a time, the last ones with weight 0.
    """
    n, heads, e = q_NHE.shape
    group, places = heads // keys_SKCE.shape[1], keys_SKCE.shape[2]
    weight_C, power_C = np.empty(places, np.float32), np.empty(places, np.float32)
    bits_C = power_C.view(np.int32)
    for t in range(n):
        length = place_N[t] + 1
        for h in range(heads):
            q_E, out_E = q_NHE[t, h], out_NHE[t, h]
            keys_CE = keys_SKCE[slot_N[t], h // group]
            values_CE = values_SKCE[slot_N[t], h // group]
            for j in range(length):
                dot = np.float32(0)
                for i in range(e):
                    dot += q_E[i] * keys_CE[j, i]
                weight_C[j] = dot
            top = weight_C[0]
            for j in range(1, length):
                top = max(top, weight_C[j])
            total = _exponentials(weight_C, length, top, power_C, bits_C)
            for j in range(length, (length + 3) // 4 * 4):
                weight_C[j] = np.float32(0)
            for i in range(e):
                out_E[i] = np.float32(0)
            for j in range(0, length, 4):
                a, b, c, d = weight_C[j], weight_C[j + 1], weight_C[j + 2], weight_C[j + 3]
                a_E, b_E, c_E, d_E = values_CE[j], values_CE[j + 1], values_CE[j + 2], values_CE[j + 3]
                for i in range(e):
                    out_E[i] += a * a_E[i] + b * b_E[i] + c * c_E[i] + d * d_E[i]
            for i in range(e):
                out_E[i] /= total
