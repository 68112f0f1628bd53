"""A structured start for tiny models: heads that copy, and first heads that look back.

A standard start learns a format in seconds but not to copy: the loss stays on a plateau.  Two things
that any model of language comes to do are put in from the beginning; neither knows a task.
(a) `copy_init`: o_proj = v_proj transposed, so a head writes what it looks at.
(b) `_look_back`: the heads of the first layer look one or two tokens back.
"""

from __future__ import annotations

import torch
from torch import nn

from trainer.backends.model import Attention, CausalLM, Shape


@torch.no_grad()
def fresh(
    shape: Shape,
    seed: int,
    *,
    copy_gain: float = 4.0,
    embedding_std: float = 0.1,
    look_back_gain: float = 6.0,
) -> CausalLM:
    """A new model, float32, a function of its arguments alone.  A gain of 0 leaves its part out."""
    model = CausalLM(shape)
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if p.dim() == 2:
            std = embedding_std if "embed" in name or "lm_head" in name else p.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= (2 * shape.num_hidden_layers) ** 0.5
            nn.init.normal_(p, 0.0, std, generator=generator)
    if copy_gain:
        copy_init(model, copy_gain)
    if look_back_gain:
        _look_back(model, look_back_gain)
    return model


def copy_init(model: CausalLM, gain: float) -> None:
    """Sets every layer's o_proj to v_proj transposed, `gain` shared out among the layers."""
    s = model.shape
    share = s.num_attention_heads // s.num_key_value_heads
    for layer in model.model.layers:
        attention = layer.self_attn
        assert isinstance(attention, Attention)
        v = attention.v_proj.weight.view(-1, s.head_dim, s.hidden_size)
        o = v.repeat_interleave(share, 0).flatten(0, 1).T
        attention.o_proj.weight.copy_(o * (gain / s.num_hidden_layers))


def _look_back(model: CausalLM, gain: float) -> None:
    """Heads of the first layer start by looking one or two tokens back.

    Embeddings share a constant part u; k = c, q = c turned by the distance: the score
    c . R(j - i + distance) c is highest at j = i - distance.
    """
    s, attention = model.shape, model.model.layers[0].self_attn
    assert isinstance(attention, Attention)
    u = torch.zeros(s.hidden_size)
    u[0] = 1.0
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = embedding.std() * s.hidden_size**0.5 * 0.5
    half = s.head_dim // 2
    inverse = s.rope_theta ** (-torch.arange(half) * 2 / s.head_dim)
    c = torch.zeros(s.head_dim)
    c[:5] = 1.0  # the fast frequencies only: slow ones cannot tell neighbours apart
    share = s.num_attention_heads // s.num_key_value_heads
    for h in range(s.num_attention_heads):
        distance = 1 + (h // share) % 2
        q = torch.zeros(s.head_dim)
        q[:half], q[half:] = c[:half] * (inverse * -distance).cos(), c[:half] * (inverse * -distance).sin()
        attention.q_proj.weight[h * s.head_dim : (h + 1) * s.head_dim].mul_(0.1).add_(torch.outer(q, u))
    for h in range(s.num_key_value_heads):
        attention.k_proj.weight[h * s.head_dim : (h + 1) * s.head_dim].mul_(0.1).add_(torch.outer(c, u))
    attention.q_norm.weight.fill_(gain)
