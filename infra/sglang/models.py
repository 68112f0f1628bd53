"""Tiny models of random weights, as Hugging Face folders that SGLang serves: `models.py KIND FOLDER [SEED]`.

The tokenizer is byte-level BPE, trained on this repository's own text; the chat template is Qwen's way of
writing tools.  The same arguments give the same weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"]
VOCABULARY = 2048
SHARPNESS = 4.0  # of the output layer; at 1 all words are about as likely

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(WORDS),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted(HERE.parents[1].glob("*.md")) + sorted(HERE.parents[1].glob("lake/*.py"))
    made.train_from_iterator([path.read_text() for path in texts], trainer)
    made.add_tokens([AddedToken(word, special=False, normalized=False) for word in WORDS])
    whole = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    whole.chat_template = (HERE / "chat_template.jinja").read_text()
    whole.save_pretrained(folder)


def model(kind: str, seed: int) -> Any:
    """The model, bfloat16, with an output layer that has likes and dislikes."""
    import torch
    import transformers

    torch.manual_seed(seed)
    if kind == "qwen2":
        config: Any = transformers.Qwen2Config(**SHAPE)
    elif kind == "qwen3":
        config = transformers.Qwen3Config(head_dim=64, **SHAPE)
    else:
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        config = transformers.Qwen3MoeConfig(head_dim=64, **experts, **SHAPE)
    made = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        made.lm_head.weight *= SHARPNESS / (0.02 * SHAPE["hidden_size"] ** 0.5)
    return made.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["qwen2", "qwen3", "qwen3-moe"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    a = parser.parse_args()
    if a.folder.exists():
        parser.error(f"{a.folder} exists already; take another name, or remove it")
    made = model(a.kind, a.seed)
    tokenizer(a.folder)
    made.save_pretrained(a.folder)
    count = sum(p.numel() for p in made.parameters())
    print(f"{a.folder}: {a.kind}, {count / 1e6:.1f} million random weights, seed {a.seed}")


if __name__ == "__main__":
    main()
