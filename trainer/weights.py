"""Weights as a Hugging Face folder: written whole or not at all, and named by what they hold.

model.safetensors   tensors under Hugging Face's names
config.json, generation_config.json
tokenizer.json, ... copied from another folder, if one is given
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lake.durable import sync
from trainer.backends.model import CausalLM, Shape

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


class WeightsError(ValueError):
    """A folder does not hold the weights that it should, or may not be written."""


def digest(state: Mapping[str, Tensor]) -> str:
    """sha256 over name, dtype, shape and raw bytes of every tensor, in the order of the names.

    Depends on the values alone: not on file layout, order of insertion, strides or device.
    """
    h = hashlib.sha256()
    for name in sorted(state):
        t = state[name].detach().to("cpu").contiguous()
        head = [name, str(t.dtype).removeprefix("torch."), list(t.shape)]
        h.update(json.dumps(head, separators=(",", ":")).encode() + b"\n")
        h.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def save(model: CausalLM, folder: Path, *, extra_files_from: Path | None = None) -> None:
    """Writes `folder` as a whole: a reader, and a crash at any point, sees all of it or nothing.

    Tokenizer files (and a generation_config.json) are copied from `extra_files_from`.
    Raises WeightsError where the folder exists; OSError from the disk, having removed its own traces.
    """
    folder = Path(folder)
    if folder.exists():
        raise WeightsError(
            f"{folder} exists already; weights are never written over: remove it or take another name"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        _write(model, part, extra_files_from)
        for path in part.iterdir():
            sync(path)
        sync(part)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync(folder.parent)


def _write(model: CausalLM, part: Path, extra_files_from: Path | None) -> None:
    state = {name: t.detach().to("cpu").contiguous() for name, t in model.state_dict().items()}
    save_file(state, part / "model.safetensors", metadata={"format": "pt"})
    (part / "model.safetensors").chmod(0o644)  # safetensors leaves it to the owner; engines may be others
    config = model.shape.config(next(iter(state.values())).dtype)
    (part / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    eos = {"eos_token_id": list(model.shape.eos_token_ids)} if model.shape.eos_token_ids else {}
    (part / "generation_config.json").write_text(json.dumps(eos, indent=2) + "\n")
    if extra_files_from is not None:
        source = Path(extra_files_from)
        if not (source / "tokenizer.json").is_file():
            raise WeightsError(f"{source} has no tokenizer.json to copy")
        for name in (*TOKENIZER_FILES, "generation_config.json"):
            if (source / name).is_file():
                shutil.copyfile(source / name, part / name)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    """The model of a folder (one file, or shards under an index), its tensors as `dtype` on the CPU.

    Raises UnsupportedModel for another architecture; WeightsError for a missing file, and for a
    missing, surplus or misshapen tensor.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise WeightsError(f"{folder} has no config.json: give a folder of weights in Hugging Face form")
    shape = Shape.of(json.loads((folder / "config.json").read_text()))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{folder} has no *.safetensors file")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    state: dict[str, Tensor] = {}
    for file in files:
        state |= load_file(file)
    if shape.tie_word_embeddings:
        state.pop("lm_head.weight", None)  # some writers repeat the tied head
    with torch.device("meta"):
        model = CausalLM(shape)
    try:
        model.load_state_dict({name: t.to(dtype) for name, t in state.items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise WeightsError(f"{folder}: {error}") from error
    return model.requires_grad_(True)
