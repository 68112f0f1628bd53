"""Courier's tokenizer and chat template, as the files that Hugging Face's libraries load.

388 ids: 5 control tokens, 256 bytes, and the game's words as one id each.  BPE without merges and
with `ignore_merges`: a pre-token that is in the vocabulary is one id, anything else falls back to
bytes, so that any text encodes and decodes to itself.

The template is Qwen's ChatML, except that a tool's answer has a role of its own; a tool call is
rendered exactly as the model writes it: Hermes form, compact JSON.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ingest.courier.chat import dumps
from ingest.courier.harness import COMPACT, MAIN_SYSTEM, ORDER, QUESTION, RESUME, SUB_SYSTEM
from ingest.courier.task import ENTRY, GOODS, ITEMS, LABEL, NAMES, NUMBERS, PEOPLE, PLACE

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>")  # whole tokens, but part of the text
TOOLS = ("find", "take", "ask", "look", "deliver")
CONTEXT_TOKENS = 512

TEMPLATE = r"""
{%- for message in messages -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- elif message.content -%}
        {%- for part in message.content -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
    {%- if message.tool_calls -%}
        {%- for tool_call in message.tool_calls -%}
            {%- set call = tool_call.function if tool_call.function else tool_call -%}
            {%- if not loop.first or message.content -%}{{- '\n' -}}{%- endif -%}
            {{- '<tool_call>\n{"name":' ~ (call.name | tojson) ~ ',"arguments":' -}}
            {%- if call.arguments is string -%}
                {{- call.arguments -}}
            {%- else -%}
                {{- call.arguments | tojson(separators=(',', ':')) -}}
            {%- endif -%}
            {{- '}\n</tool_call>' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""".strip()


def _call(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>\n{dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _texts() -> list[str]:
    """What is said in the game, so that each of its words gets an id.  The order gives the ids."""
    return [
        MAIN_SYSTEM, SUB_SYSTEM, COMPACT, "system\nuser\nassistant\ntool\n", "empty", "unknown", "signed",
        "done", "error", ORDER.format(order=dumps(dict.fromkeys(GOODS + NAMES, "x"))),
        QUESTION.format(question=dumps({"to": "x"})), RESUME.format(summary=dumps({"tag": 10, "door": 10})),
        *("\n" + _call(n, {k: v}) + "\n" for n in TOOLS for k in PLACE + LABEL + ENTRY for v in (10, "x")),
        "\n" + _call("x", {"a": 10, "b": 10}) + "\n", dumps({"a": 10, "b": 10}),
        ",".join(ITEMS + PEOPLE), ",".join(map(str, NUMBERS)),
    ]  # fmt: skip


def build_tokenizer() -> Tokenizer:
    """The tokenizer; every call makes the same one."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    control = SPECIAL + MARKS
    cut = re.compile("|".join(map(re.escape, control)))
    words = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    for text in _texts():
        for part in cut.split(text):
            words.update(dict.fromkeys(word for word, _ in split.pre_tokenize_str(part)))
    vocabulary = {word: i for i, word in enumerate([*control, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(c, normalized=False) for c in SPECIAL])
    tokenizer.add_tokens([AddedToken(c, normalized=False) for c in MARKS])
    return tokenizer


def save(folder: str | Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into a folder (made if absent).

    `tokenizers.Tokenizer.from_file` and `transformers.AutoTokenizer.from_pretrained` load them.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    end_of_text, _, end_of_turn = SPECIAL
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "bos_token": None,
        "eos_token": end_of_turn,
        "pad_token": end_of_text,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in SPECIAL,
            }
            for token in SPECIAL + MARKS
        },
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (path / "chat_template.jinja").write_text(TEMPLATE)
