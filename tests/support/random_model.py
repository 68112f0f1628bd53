"""A tiny random Qwen3-shaped model in a Hugging Face folder, with a small byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS = 1


def make_tiny_model(
    folder: Path,
    seed: int = 0,
    vocab: int = 388,
    layers: int = 2,
    hidden: int = 64,
    *,
    inner: int | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    places: int = 4096,
    tied: bool = True,
    sharpness: float = 1.0,
) -> Path:
    """Write config.json, model.safetensors and tokenizer.json; the same arguments, the same bytes.

    `sharpness` scales the output layer: the larger, the further from uniform the model's answers.
    The tokenizer has `<|endoftext|>` (0), `<|im_end|>` (1, the EOS) and as many bytes as fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inner = inner or 2 * hidden
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": places,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = _tensors(config, torch.Generator().manual_seed(seed), sharpness)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(vocab).save(str(folder / "tokenizer.json"))
    return folder


def _tensors(config: dict, draw: torch.Generator, sharpness: float) -> dict[str, torch.Tensor]:
    """Random tensors under Hugging Face's names."""
    hidden, vocab, inner = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    head_dim = config["head_dim"]

    def normal(*size: int, std: float) -> torch.Tensor:
        return torch.randn(*size, generator=draw) * std

    def norm(width: int) -> torch.Tensor:
        return 1 + normal(width, std=0.1)

    q, k = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    out = sharpness * hidden**-0.5
    tensors = {"model.embed_tokens.weight": normal(vocab, hidden, std=out), "model.norm.weight": norm(hidden)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(vocab, hidden, std=out)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        tensors |= {
            f"{at}.input_layernorm.weight": norm(hidden),
            f"{at}.post_attention_layernorm.weight": norm(hidden),
            f"{at}.self_attn.q_proj.weight": normal(q, hidden, std=hidden**-0.5),
            f"{at}.self_attn.k_proj.weight": normal(k, hidden, std=hidden**-0.5),
            f"{at}.self_attn.v_proj.weight": normal(k, hidden, std=hidden**-0.5),
            f"{at}.self_attn.o_proj.weight": normal(hidden, q, std=q**-0.5),
            f"{at}.self_attn.q_norm.weight": norm(head_dim),
            f"{at}.self_attn.k_norm.weight": norm(head_dim),
            f"{at}.mlp.gate_proj.weight": normal(inner, hidden, std=hidden**-0.5),
            f"{at}.mlp.up_proj.weight": normal(inner, hidden, std=hidden**-0.5),
            f"{at}.mlp.down_proj.weight": normal(hidden, inner, std=inner**-0.5),
        }
    return tensors


def _tokenizer(vocab: int) -> Tokenizer:
    special = ["<|endoftext|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate((special + letters)[:vocab])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([s for s in special if s in words])
    return tokenizer
