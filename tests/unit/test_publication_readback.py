"""Which engines' tensors do not follow is found, whatever the checksum and however tensors are shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.publication.engine import PublishError
from trainer.publication.readback import check_tensors, difference, part_of_fused, probe, served_name

NAMES = [f"t{i}" for i in range(6)]


def sums(values: dict[str, int]) -> dict[str, str]:
    return {name: f"{value:064x}" for name, value in values.items()}


def engine(values: dict[str, int], ranks: int) -> dict[str, str]:
    """Checksums of an engine of its own kind; a shard may be equal where the whole is not."""
    return {f"{r} {n}": f"{n}-{v if r == 0 else v // 2}" for r in range(ranks) for n, v in values.items()}


values = st.fixed_dictionaries({name: st.integers(0, 3) for name in NAMES})


@given(values, values, values, st.integers(1, 3))
def test_an_engine_must_change_exactly_what_changed(old, new, served, ranks):
    arguments = {"old": sums(old), "new": sums(new), "before": engine(old, ranks)}
    check_tensors("URL", **arguments, after=engine(new, ranks))
    odd = [n for n in NAMES if (served[n] == old[n]) != (new[n] == old[n])]
    if odd:
        with pytest.raises(PublishError, match="URL does not serve"):
            check_tensors("URL", **arguments, after=engine(served, ranks))
    else:
        check_tensors("URL", **arguments, after=engine(served, ranks))


@given(values, values, values)
def test_where_the_checksum_is_known_every_bit_counts(old, new, served):
    before, after = ({f"0 {n}": s[:64] for n, s in sums(v).items()} for v in (old, served))
    if served == new:
        check_tensors("URL", old=sums(old), new=sums(new), before=before, after=after)
    else:
        with pytest.raises(PublishError, match="URL does not serve"):
            check_tensors("URL", old=sums(old), new=sums(new), before=before, after=after)


def test_an_engine_without_checksums_is_not_asked():
    check_tensors("URL", old=sums({"a": 1}), new=sums({"a": 2}), before={}, after={})


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.qkv_proj.weight"),
        ("model.layers.3.self_attn.v_proj.bias", "model.layers.3.self_attn.qkv_proj.bias"),
        ("model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.gate_up_proj.weight"),
        ("model.layers.3.mlp.experts.7.up_proj.weight", "model.layers.3.mlp.experts.w13_weight"),
        ("model.layers.3.mlp.experts.7.down_proj.weight", "model.layers.3.mlp.experts.w2_weight"),
        ("model.layers.3.self_attn.q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
        ("model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate.weight"),
    ],
)
def test_names_of_tensors_in_an_engine(name, served):
    assert served_name(name) == served


def test_parts_of_one_tensor_come_in_the_order_of_the_engine():
    names = [f"l.self_attn.{n}_proj.weight" for n in "kvq"] + [
        "l.mlp.up_proj.weight",
        "l.mlp.gate_proj.weight",
    ]
    ordered = [n.split(".")[2] for n in sorted(names, key=part_of_fused)]
    assert ordered == ["gate_proj", "up_proj", "q_proj", "k_proj", "v_proj"]


@given(st.integers(1, 300_000), st.integers(2, 10_000))
def test_the_probe_fits_the_vocabulary_and_the_context(vocab_size, context):
    prompt, count = probe(vocab_size, context)
    again, _ = probe(vocab_size, context)
    assert (prompt == again).all()
    assert 0 <= prompt.min() <= prompt.max() < vocab_size
    assert len(prompt) >= 1
    assert count >= 1
    assert len(prompt) + count <= context


def test_a_score_that_is_missing_or_not_finite_is_infinitely_far():
    assert difference(np.array([-1.0, -2.0]), np.array([-1.5, -2.25])) == (0.375, 0.5)
    assert difference(np.array([-1.0]), np.array([-1.0, -2.0])).mean == float("inf")
    assert difference(np.array([-1.0, np.nan]), np.array([-1.0, -2.0])).largest == float("inf")
