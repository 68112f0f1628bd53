"""An independent reference: Qwen3's forward pass in plain torch, one sequence, no cache, no fused weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _rotate(x_HTE: Tensor, theta: float) -> Tensor:
    t, e = x_HTE.shape[-2:]
    angle = torch.outer(torch.arange(t).double(), theta ** (-torch.arange(0, e, 2).double() / e)).repeat(1, 2)
    turned = torch.cat([-x_HTE[..., e // 2 :], x_HTE[..., : e // 2]], -1)
    return x_HTE * angle.cos() + turned * angle.sin()


@torch.no_grad()
def reference_logits(folder: Path, ids: list[int]) -> Tensor:
    """Logits (T, V), computed in float64."""
    c = json.loads((folder / "config.json").read_text())
    w = {k: v.double() for k, v in load_file(folder / "model.safetensors").items()}
    eps, e, theta = c["rms_norm_eps"], c["head_dim"], c["rope_theta"]
    h, k, t = c["num_attention_heads"], c["num_key_value_heads"], len(ids)
    x = w["model.embed_tokens.weight"][torch.tensor(ids)]
    hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = _norm(x, w[at + "input_layernorm.weight"], eps)

        def heads(name: str, n: int, y: Tensor = y, at: str = at) -> Tensor:
            return (y @ w[f"{at}self_attn.{name}_proj.weight"].T).view(t, n, e).transpose(0, 1)

        q = _rotate(_norm(heads("q", h), w[at + "self_attn.q_norm.weight"], eps), theta)
        key = _rotate(_norm(heads("k", k), w[at + "self_attn.k_norm.weight"], eps), theta)
        value = heads("v", k)
        mixed = []
        for head in range(h):
            g = head // (h // k)
            score = (q[head] @ key[g].T / e**0.5).masked_fill(hidden, -torch.inf)
            mixed.append(score.softmax(-1) @ value[g])
        x = x + torch.cat(mixed, -1) @ w[at + "self_attn.o_proj.weight"].T
        y = _norm(x, w[at + "post_attention_layernorm.weight"], eps)
        gate, up = y @ w[at + "mlp.gate_proj.weight"].T, y @ w[at + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w[at + "mlp.down_proj.weight"].T
    x = _norm(x, w["model.norm.weight"], eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
