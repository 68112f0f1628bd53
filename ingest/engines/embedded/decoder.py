"""The forward pass over a step's tokens, packed, against slots of keys and values.

Shapes: N tokens of a step, S slots, C places of a slot, D width, H query heads, K key/value heads,
E head width, V words.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ingest.engines.embedded import kernels
from ingest.engines.embedded.weights import Shape, Weights


class Chunk(msgspec.Struct, frozen=True):
    """Several tokens of one slot: rows [row, row + stop - start) of the step, places [start, stop)."""

    slot: int
    row: int
    start: int
    stop: int


def _mask(chunk: Chunk) -> Tensor | None:
    """Which places each token of a chunk sees; None for the causal mask of a chunk from place 0 on."""
    if not chunk.start:
        return None
    return torch.ones(chunk.stop - chunk.start, chunk.stop, dtype=torch.bool).tril_(chunk.start)


class Decoder:
    """A model and its cache of S slots with C places each.

    - `forward` computes N tokens at once: the first rows are single tokens of different slots, the
      others come in chunks; a row's result does not depend on what else is in the step beyond rounding.
    - A token's keys and values stay at its place until something is written there again.
    - `weights` may be replaced between two calls by others of the same shape.
    """

    def __init__(self, weights: Weights, *, slots: int, places: int) -> None:
        s = weights.shape
        self.weights, self.places = weights, places
        whole = (places + 3) // 4 * 4  # as the kernel needs it
        size = (s.num_hidden_layers, slots, s.num_key_value_heads, whole, s.head_dim)
        # numpy's zeros take memory only where something is written
        self._keys, self._values = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._keys_torch, self._values_torch = torch.from_numpy(self._keys), torch.from_numpy(self._values)
        inverse = s.rope_theta ** -(torch.arange(0, s.head_dim, 2) / s.head_dim)
        angle = torch.outer(torch.arange(places), inverse)
        self._cos, self._sin = angle.cos().numpy(), angle.sin().numpy()
        self._eps = np.float32(s.rms_norm_eps)

    @staticmethod
    def bytes_per_slot(shape: Shape, places: int) -> int:
        """What one slot of this many places takes, keys and values together."""
        return 8 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * (places + 3)

    def copy(self, source: int, target: int, length: int) -> None:
        """Places [0, length) of one slot to another."""
        for held in (self._keys_torch, self._values_torch):
            held[:, target, :, :length] = held[:, source, :, :length]

    @torch.inference_mode()
    def forward(
        self, ids_N: np.ndarray, slot_N: np.ndarray, place_N: np.ndarray, *, chunks: Sequence[Chunk]
    ) -> Tensor:
        """The last layer's output (N, D), before the final norm; all inputs int64.

        The rows before the first chunk are single tokens; the others are covered by `chunks` in order.
        The earlier places of every slot named must have been computed before.
        """
        w, s, n = self.weights, self.weights.shape, len(ids_N)
        singles = chunks[0].row if chunks else n
        x_ND = w.embed_VD[torch.from_numpy(ids_N)]
        q_NHE = np.empty((n, s.num_attention_heads, s.head_dim), np.float32)
        mixed_NHE = np.empty_like(q_NHE)
        q_torch, mixed_torch = torch.from_numpy(q_NHE), torch.from_numpy(mixed_NHE)
        at, at_singles = (slot_N, place_N), (slot_N[:singles], place_N[:singles])
        masks = [_mask(c) for c in chunks]
        for i, layer in enumerate(w.layers):
            keys, values = self._keys[i], self._values[i]
            y = F.linear(self._norm(x_ND, layer.before_attention_D), layer.qkv)
            qkv, norms = y.view(n, -1, s.head_dim).numpy(), (layer.q_norm_E, layer.k_norm_E, self._eps)
            kernels.place(qkv, *norms, self._cos, self._sin, *at, keys, values, q_NHE)
            kernels.attend_one(q_NHE[:singles], keys, values, *at_singles, mixed_NHE[:singles])
            for chunk, mask in zip(chunks, masks, strict=True):
                self._attend_chunk(i, chunk, mask, q_torch, mixed_torch)
            x_ND = torch.addmm(x_ND, mixed_torch.view(n, -1), layer.output.t())
            y = F.linear(self._norm(x_ND, layer.before_mlp_D), layer.gate_up)
            gate, up = y.chunk(2, -1)
            x_ND = torch.addmm(x_ND, F.silu(gate) * up, layer.down.t())
        return x_ND

    def _norm(self, x: Tensor, weight_D: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight_D, self.weights.shape.rms_norm_eps)

    def _attend_chunk(
        self, layer: int, chunk: Chunk, mask: Tensor | None, q_NHE: Tensor, mixed_NHE: Tensor
    ) -> None:
        rows = slice(chunk.row, chunk.row + chunk.stop - chunk.start)
        q = q_NHE[rows].transpose(0, 1)[None]
        k = self._keys_torch[layer, chunk.slot, None, :, : chunk.stop]
        v = self._values_torch[layer, chunk.slot, None, :, : chunk.stop]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True
        )
        mixed_NHE[rows] = y[0].transpose(0, 1)

    @torch.inference_mode()
    def logits(self, x_RD: Tensor) -> Tensor:
        """The logits (R, V) of rows of `forward`'s result."""
        return F.linear(self._norm(x_RD, self.weights.norm_D), self.weights.head_VD)
