"""Folders of weights: whole or absent, and named by what they hold."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from tests.support.engines import ROOT
from trainer import weights
from trainer.backends.model import Shape
from trainer.courier_start import fresh
from trainer.weights import WeightsError

SHAPE = Shape(vocab_size=23, hidden_size=16, intermediate_size=24, head_dim=8, num_attention_heads=4,
              num_key_value_heads=2, eos_token_ids=(3,))  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "unrelated.bin").write_text("no")
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_is_loaded(tmp_path, tokenizer, tied):
    m = fresh(Shape(**{**SHAPE.__dict__, "tie_word_embeddings": tied}), 0)
    folder = tmp_path / "a" / "v000001"
    weights.save(m, folder, extra_files_from=tokenizer)
    back = weights.load(folder)
    assert back.shape == m.shape
    assert weights.digest(back.state_dict()) == weights.digest(m.state_dict())
    assert all(p.requires_grad for p in back.parameters())
    assert ("lm_head.weight" in back.state_dict()) is not tied
    assert sorted(p.name for p in folder.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": [3]}
    assert [p.name for p in folder.parent.iterdir()] == ["v000001"]


def test_equal_weights_are_equal_files(tmp_path):
    for name in ("a", "b"):
        weights.save(fresh(SHAPE, 4), tmp_path / name)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_never_written_over(tmp_path):
    weights.save(fresh(SHAPE, 0), tmp_path / "v")
    with pytest.raises(WeightsError, match="exists already"):
        weights.save(fresh(SHAPE, 1), tmp_path / "v")


def test_a_failure_leaves_no_trace(tmp_path):
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        weights.save(fresh(SHAPE, 0), tmp_path / "out" / "v", extra_files_from=tmp_path)
    assert list((tmp_path / "out").iterdir()) == []


def test_the_digest_is_of_names_types_shapes_and_bytes():
    state = {
        "b": torch.arange(6, dtype=torch.float32).view(2, 3),
        "a": torch.tensor(1.5, dtype=torch.bfloat16),
    }
    expected = hashlib.sha256(
        b'["a","bfloat16",[]]\n' + b"\xc0\x3f" + b'["b","float32",[2,3]]\n' + state["b"].numpy().tobytes()
    ).hexdigest()
    assert weights.digest(state) == expected
    assert weights.digest(dict(reversed(state.items()))) == expected
    assert weights.digest(state | {"b": state["b"].T.contiguous().T}) == expected  # strides have no say
    for other in (
        state | {"b": state["b"].view(3, 2)},
        state | {"b": state["b"].view(torch.int32)},
        state | {"b": state["b"] + 1e-7},
        {"b": state["b"], "c": state["a"]},
    ):
        assert weights.digest(other) != expected


def test_shards_under_an_index(tmp_path):
    m = fresh(SHAPE, 0)
    weights.save(m, tmp_path / "v")
    state = m.state_dict()
    (tmp_path / "v/model.safetensors").unlink()
    names = sorted(state)
    files = {n: f"model-{1 + (i >= 5)}.safetensors" for i, n in enumerate(names)}
    for file in set(files.values()):
        save_file({n: state[n] for n in names if files[n] == file}, tmp_path / "v" / file)
    (tmp_path / "v/model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "v/other.safetensors").write_bytes(b"not named by the index")
    assert weights.digest(weights.load(tmp_path / "v").state_dict()) == weights.digest(state)


def test_a_folder_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"no config\.json"):
        weights.load(tmp_path)
    weights.save(fresh(SHAPE, 0), tmp_path / "v")
    state = fresh(SHAPE, 0).state_dict()
    state.pop("model.norm.weight")
    save_file(state, tmp_path / "v/model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
        weights.load(tmp_path / "v")
    (tmp_path / "v/model.safetensors").unlink()
    with pytest.raises(WeightsError, match="safetensors"):
        weights.load(tmp_path / "v")


def test_reading_weights_draws_none(tmp_path, tokenizer):
    """A first draw on the meta device loads 3 s of torch's Python: at every start, and in front of the first
    publication."""
    folder = tmp_path / "v000001"
    weights.save(fresh(SHAPE, 0), folder, extra_files_from=tokenizer)
    code = "import sys; from trainer import weights; weights.load(sys.argv[1]); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code, folder], check=True, cwd=ROOT, capture_output=True)
    assert b"torch.nn" in ran.stdout
    assert b"torch._dynamo" not in ran.stdout
