"""The trainer's forward pass in bfloat16: rounded where SGLang rounds; gradients and weights in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lake.config import Config, ConfigError, Engine, Objective, Trainer, override
from tests.support.random_model import make_tiny_model
from tests.support.ten_steps import batch, make, steps
from trainer import weights
from trainer.backends.choose import make_backend
from trainer.backends.model import CausalLM, Linear

BF16 = torch.bfloat16


def by_sglang(state: dict[str, Tensor], shape, ids: Tensor) -> Tensor:
    """The logits (T, V) of a row in bfloat16 tensors, as forward_native of SGLang's layers computes them.

    With --enable-fp32-lm-head: what comes after the last norm is float32.
    """
    w = {name.removeprefix("model."): t.to(BF16) for name, t in state.items()}
    heads, groups, e = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim

    def norm(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        wide = x.float() + (0.0 if residual is None else residual.float())
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + shape.rms_norm_eps)
        return (scaled * weight).to(BF16), wide.to(BF16)

    def rope(x: Tensor) -> Tensor:
        inverse = 1.0 / shape.rope_theta ** (torch.arange(0, e, 2).float() / e)
        angle = torch.arange(len(ids)).float()[:, None] * inverse
        cos, sin = angle.cos().to(BF16)[:, None], angle.sin().to(BF16)[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    residual, x = None, w["embed_tokens.weight"][ids]
    for i in range(shape.num_hidden_layers):
        of = {n.removeprefix(f"layers.{i}."): t for n, t in w.items() if n.startswith(f"layers.{i}.")}
        x, residual = norm(x, of["input_layernorm.weight"], residual)
        q, k, v = (F.linear(x, of[f"self_attn.{n}_proj.weight"]).view(len(ids), -1, e) for n in "qkv")
        q = rope(norm(q, of["self_attn.q_norm.weight"])[0]).transpose(0, 1)
        k = rope(norm(k, of["self_attn.k_norm.weight"])[0]).transpose(0, 1)
        k, v = (t.repeat_interleave(heads // groups, 0) for t in (k, v.transpose(0, 1)))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = F.linear(y.transpose(0, 1).flatten(1), of["self_attn.o_proj.weight"])
        x, residual = norm(x, of["post_attention_layernorm.weight"], residual)
        gate, up = (F.linear(x, of[f"mlp.{n}_proj.weight"]) for n in ("gate", "up"))
        x = F.linear(F.silu(gate) * up, of["mlp.down_proj.weight"])
    x, _ = norm(x, w["norm.weight"], residual)
    return F.linear(x.float(), w["embed_tokens.weight"].float())


def logits(model: CausalLM, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model.forward_hidden(ids[None]))[0]


@pytest.fixture
def model(tmp_path: Path) -> CausalLM:
    return weights.load(make_tiny_model(tmp_path / "model", sharpness=4.0))


def test_logits_are_those_of_bfloat16_arithmetic(model: CausalLM) -> None:
    ids = torch.randint(0, 388, (120,), generator=torch.Generator().manual_seed(0))
    wanted, wide = by_sglang(model.state_dict(), model.shape, ids), logits(model, ids)
    model.compute_as(BF16)
    found = logits(model, ids)
    hidden = model.forward_hidden(ids[None])
    assert torch.equal(hidden, hidden.to(BF16).float())
    off, off_wide = ((t.log_softmax(-1) - wanted.log_softmax(-1)).abs() for t in (found, wide))
    assert off.mean() < off_wide.mean() / 4
    assert (off.mean(-1) < 0.02).float().mean() > 0.9  # a number that falls on the other side moves its row
    model.compute_as(None)
    assert torch.equal(logits(model, ids), wide)


def test_the_gradient_of_rounding_is_that_of_nothing() -> None:
    draw = torch.Generator().manual_seed(0)
    layer, x = Linear(8, 4), torch.randn(5, 8, generator=draw).requires_grad_()
    slope = torch.randn(5, 4, generator=draw)
    layer.dtype = BF16
    out = layer(x)
    out.backward(slope)
    assert torch.equal(out, F.linear(x, layer.weight.to(BF16).float()).to(BF16).float())
    assert torch.allclose(layer.weight.grad, slope.T @ x)
    assert torch.allclose(x.grad, slope @ layer.weight.to(BF16).float())


@pytest.mark.parametrize("form", ["token", "gspo"])
def test_gradients_are_near_those_of_float32(form: str) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        backend = make(Objective(form=form, clip_low=0.2, clip_high=0.2), precision=precision)
        backend.accumulate(batch(make()))
        found[precision] = torch.cat([p.grad.flatten() for p in backend.model.parameters()])
    wide, short = found["float32"], found["bfloat16"]
    assert short.dtype == torch.float32
    assert not torch.equal(wide, short)
    assert (wide - short).norm() < 0.05 * wide.norm()


def test_two_backends_in_bfloat16_hold_equal_bits_and_full_weights() -> None:
    one, other = make(precision="bfloat16"), make(precision="bfloat16")
    packed = batch(one)
    first, second = steps(one, packed, 0, 4), steps(other, packed, 0, 2)
    state = other.state_dict()
    resumed = make(precision="bfloat16")
    resumed.load_state_dict(state)
    again = steps(resumed, packed, 2, 4)
    assert first["losses"] == second["losses"] + again["losses"]
    assert first["digest"] == again["digest"]
    weight = resumed.state_dict()["model.layers.0.mlp.up_proj.weight"]
    assert not torch.equal(weight, weight.to(BF16).float())  # steps smaller than bfloat16 can tell add up


@pytest.mark.parametrize(
    ("engine", "said", "precision"),
    [
        (Engine(), "", "float32"),  # the embedded engine computes in float32, whatever SGLang would
        (Engine(kind="sglang"), "", "bfloat16"),
        (Engine(kind="sglang", dtype="float32"), "", "float32"),
        (Engine(kind="sglang", dtype="float16"), "", "float32"),
        (Engine(kind="sglang"), "float32", "float32"),
        (Engine(), "bfloat16", "bfloat16"),
    ],
)
def test_precision_is_the_engines_where_nobody_says(
    engine: Engine, said: str, precision: str, tmp_path: Path
) -> None:
    config = Config(engine=engine, trainer=Trainer(precision=said))
    backend = make_backend(config, make_tiny_model(tmp_path / "model"))
    assert config.precision == precision
    assert backend.model.dtype == (BF16 if precision == "bfloat16" else None)


def test_another_precision_is_refused() -> None:
    assert override(Config(), ["trainer.precision=bfloat16"]).precision == "bfloat16"
    with pytest.raises(ConfigError, match="precision"):
        override(Config(), ["trainer.precision=float8"])
