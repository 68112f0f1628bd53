"""A Hugging Face folder of a Qwen3-shaped model: its shape, its weights in the form the decoder reads.

Shapes: D width, F inner width, H query heads, K key/value heads, E head width, V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
from torch import Tensor


class WeightsError(ValueError):
    """A folder that cannot be served: which file or tensor, what it holds, what is needed."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What config.json says, as far as the computation depends on it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every tensor of `model.safetensors`."""
        d, f, e = self.hidden_size, self.intermediate_size, self.head_dim
        h, k = self.num_attention_heads * e, self.num_key_value_heads * e
        needed: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, d),
            "model.norm.weight": (d,),
        }
        if not self.tie_word_embeddings:
            needed["lm_head.weight"] = (self.vocab_size, d)
        for i in range(self.num_hidden_layers):
            needed |= {
                f"model.layers.{i}.{name}.weight": size
                for name, size in {
                    "input_layernorm": (d,),
                    "post_attention_layernorm": (d,),
                    "self_attn.q_proj": (h, d),
                    "self_attn.k_proj": (k, d),
                    "self_attn.v_proj": (k, d),
                    "self_attn.o_proj": (d, h),
                    "self_attn.q_norm": (e,),
                    "self_attn.k_norm": (e,),
                    "mlp.gate_proj": (f, d),
                    "mlp.up_proj": (f, d),
                    "mlp.down_proj": (d, f),
                }.items()
            }
        return needed


class Layer(msgspec.Struct, frozen=True):
    """One layer, float32.  The norms of heads are numpy arrays: the compiled kernel reads them."""

    before_attention_D: Tensor
    qkv: Tensor  # ((H + 2K) E, D)
    q_norm_E: np.ndarray
    k_norm_E: np.ndarray
    output: Tensor  # (D, H E)
    before_mlp_D: Tensor
    gate_up: Tensor  # (2F, D)
    down: Tensor  # (D, F)


class Weights(msgspec.Struct, frozen=True):
    """A whole model, float32, in memory of its own (nothing refers to the file any more)."""

    shape: Shape
    embed_VD: Tensor
    layers: tuple[Layer, ...]
    norm_D: Tensor
    head_VD: Tensor


def _json(path: Path) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing; name a Hugging Face folder") from None
    except msgspec.DecodeError as error:
        raise WeightsError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise WeightsError(f"{path} holds a {type(data).__name__}, an object is needed")
    return data


def read_shape(folder: Path) -> Shape:
    """The shape of `folder/config.json`.

    Raises WeightsError for another architecture, or for a variant of Qwen3 that is not computed here
    (biased attention, scaled rope, sliding windows).
    """
    path = folder / "config.json"
    data = _json(path)
    if "Qwen3ForCausalLM" not in (data.get("architectures") or []):
        raise WeightsError(f"{path}: architectures is {data.get('architectures')}, not Qwen3ForCausalLM")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    for name, value, needed in (
        ("rope_type", kind, "default"),
        ("attention_bias", data.get("attention_bias", False), False),
        ("use_sliding_window", data.get("use_sliding_window", False), False),
        ("hidden_act", data.get("hidden_act", "silu"), "silu"),
    ):
        if value != needed:
            raise WeightsError(f"{path}: {name} is {value!r}; the embedded engine computes {needed!r} only")
    defaults = {"rope_theta": rope.get("rope_theta", 10000.0), "tie_word_embeddings": False}
    try:
        shape = msgspec.convert(defaults | data, Shape)
    except msgspec.ValidationError as error:
        raise WeightsError(f"{path}: {error}") from None
    if shape.num_attention_heads % shape.num_key_value_heads or shape.head_dim % 2:
        raise WeightsError(
            f"{path}: {shape.num_attention_heads} heads on {shape.num_key_value_heads} key/value heads of "
            f"width {shape.head_dim}; a multiple and an even width are needed"
        )
    return shape


def read_eos(folder: Path) -> tuple[int, ...]:
    """The ids that end a generation, of config.json and generation_config.json together, ascending."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if name == "config.json" or (folder / name).exists():
            eos = _json(folder / name).get("eos_token_id")
            values = [] if eos is None else eos if isinstance(eos, list) else [eos]
            if not all(isinstance(v, int) for v in values):
                raise WeightsError(
                    f"{folder / name}: eos_token_id is {eos!r}; an integer or a list is needed"
                )
            found.update(values)
    return tuple(sorted(found))


def checked(tensors: Mapping[str, Tensor], shape: Shape, where: str) -> dict[str, Tensor]:
    """Every tensor of the shape out of `tensors`, float32, finite, in memory of its own.

    Raises WeightsError, which names `where`, for what is missing, of another shape or not finite.
    """
    own = {}
    for name, size in shape.tensors().items():
        if name not in tensors:
            raise WeightsError(f"{where} has no tensor {name}; {len(tensors)} others are there")
        if tuple(tensors[name].shape) != size:
            raise WeightsError(f"{where}: {name} has shape {tuple(tensors[name].shape)}, {size} is needed")
        own[name] = tensors[name].to(torch.float32, copy=True)
        if not bool(torch.isfinite(own[name]).all()):
            raise WeightsError(f"{where}: {name} holds a value that is not finite")
    return own


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing; sharded weights are not read") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{path} does not load: {error}") from None


def read_weights(folder: Path, shape: Shape) -> Weights:
    """The weights of `folder/model.safetensors`, which must have this shape.

    Raises WeightsError for a missing file or tensor, another shape, a value that is not finite.
    """
    path = folder / "model.safetensors"
    return assemble(checked(_read_tensors(path), shape, str(path)), shape)


def assemble(t: Mapping[str, Tensor], shape: Shape) -> Weights:
    """A model out of what `checked` gave."""

    def layer(i: int) -> Layer:
        def at(name: str) -> Tensor:
            return t[f"model.layers.{i}.{name}.weight"]

        qkv = torch.cat([at(f"self_attn.{n}_proj") for n in "qkv"])
        return Layer(
            before_attention_D=at("input_layernorm"),
            qkv=qkv,
            q_norm_E=at("self_attn.q_norm").numpy(),
            k_norm_E=at("self_attn.k_norm").numpy(),
            output=at("self_attn.o_proj"),
            before_mlp_D=at("post_attention_layernorm"),
            gate_up=torch.cat([at("mlp.gate_proj"), at("mlp.up_proj")]),
            down=at("mlp.down_proj"),
        )

    embed = t["model.embed_tokens.weight"]
    layers = tuple(layer(i) for i in range(shape.num_hidden_layers))
    head = embed if shape.tie_word_embeddings else t["lm_head.weight"]
    return Weights(shape, embed, layers, t["model.norm.weight"], head)


def fused(w: Weights) -> dict[str, Tensor]:
    """What a model computes with, under SGLang's names: q, k and v are one tensor, gate and up another."""
    tensors = {"model.embed_tokens.weight": w.embed_VD, "model.norm.weight": w.norm_D}
    if not w.shape.tie_word_embeddings:
        tensors["lm_head.weight"] = w.head_VD
    for i, layer in enumerate(w.layers):
        tensors |= {
            f"model.layers.{i}.{name}.weight": tensor
            for name, tensor in {
                "input_layernorm": layer.before_attention_D,
                "post_attention_layernorm": layer.before_mlp_D,
                "self_attn.qkv_proj": layer.qkv,
                "self_attn.o_proj": layer.output,
                "self_attn.q_norm": torch.from_numpy(layer.q_norm_E),
                "self_attn.k_norm": torch.from_numpy(layer.k_norm_E),
                "mlp.gate_up_proj": layer.gate_up,
                "mlp.down_proj": layer.down,
            }.items()
        }
    return tensors


def parts(w: Weights) -> dict[str, Tensor]:
    """The tensors of a model under the names of its file; views, not copies."""
    s, tensors = w.shape, fused(w)
    h, k = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
    for i in range(s.num_hidden_layers):
        at = f"model.layers.{i}"
        qkv = tensors.pop(f"{at}.self_attn.qkv_proj.weight").tensor_split((h, h + k))
        gate_up = tensors.pop(f"{at}.mlp.gate_up_proj.weight").tensor_split(2)
        tensors |= {f"{at}.self_attn.{n}_proj.weight": t for n, t in zip("qkv", qkv, strict=True)}
        tensors |= {f"{at}.mlp.{n}_proj.weight": t for n, t in zip(("gate", "up"), gate_up, strict=True)}
    return tensors
