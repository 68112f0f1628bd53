"""A small Qwen-like model folder: byte-level BPE with ChatML's control tokens, and a ChatML template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"]

TEXT = """
You are a helpful assistant that can call tools. Please solve the task with bash commands.
<tool_call> {"name": "bash", "arguments": {"command": "echo hello; ls -la /tmp; cat file.txt"}} </tool_call>
system user assistant tool tools function name description parameters type object properties string
The command returned output. The task is done. First I think about it, then I run the command.
"""

TEMPLATE = (Path(__file__).parents[2] / "infra" / "sglang" / "chat_template.jinja").read_text()


def make_tokenizer() -> Tokenizer:
    """About 500 tokens, every byte among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in WORDS])
    return tokenizer


def write_model_folder(folder: Path, template: str = TEMPLATE) -> Path:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json, generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end, text_end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    files = {
        "config.json": {"vocab_size": 512, "eos_token_id": end},
        "generation_config.json": {"eos_token_id": [end, text_end]},
        "tokenizer_config.json": {"eos_token": "<|im_end|>"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(template)
    return folder
