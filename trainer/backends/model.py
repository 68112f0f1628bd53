"""A Qwen3-shaped decoder for training, with Hugging Face's config and tensor names.

`CausalLM.state_dict()` holds the names of transformers' `Qwen3ForCausalLM`, so one folder loads
there, in SGLang and in Megatron's converters.  Nothing here knows of rows, packing or the objective.

Computed in float32, or (`CausalLM.compute_as`) as an engine computes that serves the weights in bfloat16:
what it rounds is rounded, at the places where it does so.

Shapes: B rows, T tokens, D width, H query heads, K key/value heads, E head width, V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UnsupportedModel(ValueError):
    """A config.json asks for something that this decoder does not compute."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model; `of` and `config` translate from and to Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = True
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if heads % groups:
            raise UnsupportedModel(f"{heads} query heads do not divide into {groups} key/value heads")
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim is {self.head_dim}; rotary positions need an even one")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """From a config.json (transformers 4 and 5).  Raises UnsupportedModel, never guesses."""
        kind = config.get("model_type")
        if kind != "qwen3":
            raise UnsupportedModel(f"model_type is {kind!r}, this decoder computes 'qwen3' alone")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        refused = {
            "hidden_act": config.get("hidden_act", "silu") != "silu",
            "attention_bias": bool(config.get("attention_bias", False)),
            "use_sliding_window": bool(config.get("use_sliding_window", False)),
            "rope_scaling": rope.get("rope_type", rope.get("type", "default")) != "default",
            "quantization_config": config.get("quantization_config") is not None,
        }
        if any(refused.values()):
            names = ", ".join(f"{name} = {config.get(name, rope)!r}" for name, bad in refused.items() if bad)
            raise UnsupportedModel(
                f"config.json asks for {names}; plain Qwen3 in full precision is computed here"
            )
        eos = config.get("eos_token_id")
        sizes = {name: config[name] for name in _SIZES if name in config}
        missing = [name for name in _SIZES if name not in config]
        if missing:
            raise UnsupportedModel(f"config.json lacks {', '.join(missing)}")
        return cls(
            **sizes,
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        )

    def config(self, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """The content of config.json."""
        data = asdict(self)
        eos = list(data.pop("eos_token_ids"))
        return data | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
            "torch_dtype": str(dtype).removeprefix("torch."),
        }


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


class _Rounded(torch.autograd.Function):
    """The nearest number of a shorter type, as a float32; the gradient passes as if nothing had been done."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Part(nn.Module):
    """What rounds: `dtype` is None in full precision, where `rounded` does nothing."""

    dtype: torch.dtype | None = None

    def rounded(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else _Rounded.apply(x, self.dtype)


class Linear(nn.Linear, Part):
    """x times weight, without a bias; sums are float32."""

    def __init__(self, size: int, size_out: int) -> None:
        super().__init__(size, size_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.rounded(F.linear(x, self.rounded(self.weight)))


class RMSNorm(Part):
    """x / rms(x) * weight over the last axis, computed in float32 and rounded once."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.rounded(F.rms_norm(x, (x.shape[-1],), self.rounded(self.weight), self.eps))


class Attention(Part):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        d, e = s.hidden_size, s.head_dim
        self.heads, self.groups, self.width = s.num_attention_heads, s.num_key_value_heads, e
        self.q_proj = Linear(d, self.heads * e)
        self.k_proj = Linear(d, self.groups * e)
        self.v_proj = Linear(d, self.groups * e)
        self.o_proj = Linear(self.heads * e, d)
        self.q_norm, self.k_norm = RMSNorm(e, s.rms_norm_eps), RMSNorm(e, s.rms_norm_eps)

    def mix(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """What each token gathers, (B, T, H * E), before o_proj."""
        b, t, _ = x_BTD.shape
        q = self.q_norm(self.q_proj(x_BTD).view(b, t, self.heads, self.width)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x_BTD).view(b, t, self.groups, self.width)).transpose(1, 2)
        v = self.v_proj(x_BTD).view(b, t, self.groups, self.width).transpose(1, 2)
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        share = self.heads // self.groups
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        if self.dtype is not None:  # weights of attention are rounded inside, block by block
            q, k, v = q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return y.to(x_BTD.dtype).transpose(1, 2).flatten(2)

    def _rotate(self, x_BHTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary position, Hugging Face's half-split convention; cos and sin: (B or 1, 1, T, E)."""
        a, b = x_BHTE.chunk(2, -1)
        cos, sin = self.rounded(cos), self.rounded(sin)
        return self.rounded(self.rounded(x_BHTE * cos) + self.rounded(torch.cat((-b, a), -1) * sin))


class MLP(Part):
    """SwiGLU."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(s.hidden_size, s.intermediate_size)
        self.up_proj = Linear(s.hidden_size, s.intermediate_size)
        self.down_proj = Linear(s.intermediate_size, s.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.rounded(self.rounded(F.silu(self.gate_proj(x))) * self.up_proj(x)))
        return out


class Layer(Part):
    """Attention and MLP, each on a normalised input and added to it.

    A sum is normalised as it is, and rounded when it is added to: between layers it is not rounded yet.
    """

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(s), MLP(s)
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, places: Tensor | None = None
    ) -> Tensor:
        """(B, T, D), or (k, D) where only the flat `places` are wanted: nothing else is computed there."""
        y = self.self_attn.mix(self.input_layernorm(x), cos, sin, mask)
        if places is not None:
            x, y = x.flatten(0, 1).index_select(0, places), y.flatten(0, 1).index_select(0, places)
        x = self.rounded(x) + self.self_attn.o_proj(y)
        out: Tensor = self.rounded(x) + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers and the last norm (`model.` in Hugging Face's names)."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        # Given a tensor it draws none: on the meta device a first draw loads 3 s of torch's Python.
        table = torch.empty(s.vocab_size, s.hidden_size)
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size, _weight=table)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_hidden_layers))
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps)


class CausalLM(Part):
    """The decoder with its head; tied, the head is the embedding and has no tensor of its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.lm_head: nn.Linear | None = None
        if not shape.tie_word_embeddings:
            self.lm_head = Linear(shape.hidden_size, shape.vocab_size)

    def compute_as(self, dtype: torch.dtype | None) -> None:
        """From now on round to `dtype` what an engine rounds that serves these weights in it; None: nothing.

        Weights and gradients stay what they are (but for those through attention, which is torch's own in
        `dtype`).  Every other result is computed in float32 and then rounded: what an engine's kernels do,
        and on a CPU without bfloat16 several times faster than they.
        """
        for part in self.modules():
            if isinstance(part, Part):
                part.dtype = dtype

    @property
    def head_weight_VD(self) -> Tensor:
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of shape (B or 1, 1, T, E), in at least float32 until the end."""
        s, device = self.shape, positions.device
        wide = torch.promote_types(dtype, torch.float32)
        inverse = s.rope_theta ** (-torch.arange(0, s.head_dim, 2, device=device, dtype=wide) / s.head_dim)
        angle = (positions.to(wide)[..., None] * inverse).repeat(1, 1, 2)[:, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward_hidden(
        self,
        ids_BT: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Normalised last states (B, T, D) of token ids (B, T), int64.

        positions: (B or 1, T) depths on the path; None counts from 0 along the row.
        mask: what SDPA takes, broadcast to (B, H, T, T), true where a query (row) sees a key; None is
        causal.  A padded tail needs no mask: no earlier token sees it.
        places: (k,) flat indices into B * T; the states of these alone, (k, D), and the last layer
        computes no others.
        """
        if positions is None:
            positions = torch.arange(ids_BT.shape[1], device=ids_BT.device)[None]
        x = self.rounded(self.model.embed_tokens(ids_BT))
        cos, sin = self._angles(positions, x.dtype)
        *below, last = self.model.layers
        for layer in below:
            x = layer(x, cos, sin, mask)
        out: Tensor = self.model.norm(last(x, cos, sin, mask, places))
        return out

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V), unscaled; never rounded, as SGLang's are not under --enable-fp32-lm-head."""
        return F.linear(x, self.rounded(self.head_weight_VD))
