"""The decoder against Qwen3 written a second time: loops over heads, no SDPA, float64."""

from __future__ import annotations

import json

import pytest
import torch

from trainer.backends.model import CausalLM, Shape, UnsupportedModel
from trainer.courier_start import fresh

SHAPE = Shape(
    vocab_size=31, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
    num_attention_heads=6, num_key_value_heads=2, head_dim=8, rope_theta=1234.0, eos_token_ids=(1, 2),
)  # fmt: skip


def model(shape=SHAPE, seed=0):
    return fresh(shape, seed).double()


def norm(x, weight, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def turn(x, positions, theta):
    """Rotates the pairs (x[d], x[d + half]) by position * theta ** (-2 d / width)."""
    half = x.shape[-1] // 2
    out = torch.empty_like(x)
    for d in range(half):
        angle = positions.double() * theta ** (-2 * d / x.shape[-1])
        out[:, d] = x[:, d] * angle.cos() - x[:, d + half] * angle.sin()
        out[:, d + half] = x[:, d + half] * angle.cos() + x[:, d] * angle.sin()
    return out


def reference(m: CausalLM, ids, positions, sees):
    """Logits (T, V) of one row; sees (T, T) bool."""
    w, s = m.state_dict(), m.shape
    x = w["model.embed_tokens.weight"][ids]
    for n in range(s.num_hidden_layers):
        at = f"model.layers.{n}."
        y = norm(x, w[at + "input_layernorm.weight"])
        heads = []
        for h in range(s.num_attention_heads):
            g = h // (s.num_attention_heads // s.num_key_value_heads)

            def part(name, k, y=y, at=at):
                return y @ w[f"{at}self_attn.{name}.weight"][k * s.head_dim : (k + 1) * s.head_dim].T

            q = turn(norm(part("q_proj", h), w[at + "self_attn.q_norm.weight"]), positions, s.rope_theta)
            k = turn(norm(part("k_proj", g), w[at + "self_attn.k_norm.weight"]), positions, s.rope_theta)
            score = (q @ k.T / s.head_dim**0.5).masked_fill(~sees, -torch.inf)
            heads.append(score.softmax(-1) @ part("v_proj", g))
        x = x + torch.cat(heads, -1) @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, w[at + "post_attention_layernorm.weight"])
        gate, up = y @ w[at + "mlp.gate_proj.weight"].T, y @ w[at + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w[at + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight"] if s.tie_word_embeddings else w["lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ head.T


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_an_independent_reference(tied):
    m = model(Shape(**{**SHAPE.__dict__, "tie_word_embeddings": tied}))
    ids = torch.randint(0, 31, (2, 13), generator=torch.Generator().manual_seed(1))
    logits = m.logits(m.forward_hidden(ids))
    causal = torch.ones(13, 13, dtype=torch.bool).tril()
    for row in range(2):
        torch.testing.assert_close(
            logits[row], reference(m, ids[row], torch.arange(13), causal), rtol=0, atol=1e-10
        )


def test_a_tree_in_one_row_equals_its_paths():
    """The seam for prefix sharing: positions are depths, the mask shows ancestors."""
    m = model()
    ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])  # 3 4 5, then 6 7 on one branch and 8 9 on the other
    positions = torch.tensor([[0, 1, 2, 3, 4, 3, 4]])
    sees = torch.ones(7, 7, dtype=torch.bool).tril()
    sees[5:, 3:5] = False
    tree = m.forward_hidden(ids, positions, sees)[0]
    torch.testing.assert_close(m.logits(tree), reference(m, ids[0], positions[0], sees), rtol=0, atol=1e-10)
    one, other = m.forward_hidden(ids[:, [0, 1, 2, 3, 4]])[0], m.forward_hidden(ids[:, [0, 1, 2, 5, 6]])[0]
    torch.testing.assert_close(tree, torch.cat([one, other[3:]]), rtol=0, atol=1e-12)


def test_places_are_the_states_asked_for_and_have_the_same_gradients():
    m = model()
    ids = torch.randint(0, 31, (3, 11), generator=torch.Generator().manual_seed(2))
    places = torch.tensor([0, 5, 6, 20, 32])
    weight = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gradients = []
    for hidden in (m.forward_hidden(ids).flatten(0, 1)[places], m.forward_hidden(ids, places=places)):
        m.zero_grad()
        (hidden * weight).sum().backward()
        gradients.append([hidden.detach(), *(p.grad.clone() for p in m.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_padded_tail_changes_nothing():
    m = model()
    ids = torch.randint(1, 31, (1, 9))
    padded = torch.cat([ids, torch.zeros(1, 6, dtype=torch.long)], 1)
    torch.testing.assert_close(m.forward_hidden(padded)[:, :9], m.forward_hidden(ids), rtol=0, atol=1e-12)


def test_shape_survives_config_json():
    assert Shape.of(json.loads(json.dumps(SHAPE.config()))) == SHAPE
    five = SHAPE.config() | {
        "rope_parameters": {"rope_theta": 77.0, "rope_type": "default"},
        "eos_token_id": 2,
    }
    assert (Shape.of(five).rope_theta, Shape.of(five).eos_token_ids) == (77.0, (2,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "'llama'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 4}, "do not divide"),
        ({"head_dim": 7}, "even"),
    ],
)
def test_what_is_not_computed_is_refused(change, message):
    with pytest.raises(UnsupportedModel, match=message):
        Shape.of(SHAPE.config() | change)


def test_a_missing_size_is_refused():
    config = SHAPE.config()
    del config["head_dim"]
    with pytest.raises(UnsupportedModel, match="lacks head_dim"):
        Shape.of(config)


def test_the_structured_start_looks_back_and_copies():
    """The first layer's heads find the token before (or two before), whatever stands there."""
    m = fresh(Shape(vocab_size=97), 5)
    ids = torch.randint(0, 97, (1, 40), generator=torch.Generator().manual_seed(0))
    layer, s = m.model.layers[0], m.shape
    x = layer.input_layernorm(m.model.embed_tokens(ids))[0]
    for h in range(s.num_attention_heads):
        q = layer.self_attn.q_norm((layer.self_attn.q_proj(x)).view(40, -1, s.head_dim)[:, h])
        k = layer.self_attn.k_norm((layer.self_attn.k_proj(x)).view(40, -1, s.head_dim)[:, h // 2])
        places = torch.arange(40)
        score = turn(q.double(), places, s.rope_theta) @ turn(k.double(), places, s.rope_theta).T
        looked = score.masked_fill(~torch.ones(40, 40, dtype=torch.bool).tril(), -torch.inf).argmax(-1)
        distance = 1 + (h // 2) % 2
        assert (looked[2:] == places[2:] - distance).double().mean() > 0.9
    v = layer.self_attn.v_proj.weight.view(4, 32, 128).repeat_interleave(2, 0).flatten(0, 1)
    torch.testing.assert_close(layer.self_attn.o_proj.weight, v.T * 2.0)
    plain = fresh(Shape(vocab_size=97), 5, copy_gain=0.0, look_back_gain=0.0)
    assert not torch.equal(plain.model.layers[0].self_attn.o_proj.weight, v.T * 2.0)
    assert (plain.model.layers[0].self_attn.q_norm.weight == 1).all()
