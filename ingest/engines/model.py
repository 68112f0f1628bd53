"""What a client must know of the model that an engine serves, out of its folder's config.json.

SGLang tells neither the size of the vocabulary nor the shape of its experts over HTTP (0.5.23: `/model_info`
and `/server_info` were looked through), so both come from a folder that lies here: the one that the caller
knows, or the engine's own `model_path` where the two share a file system.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

EXPERTS_MAX = 1 << 15  # of one layer: ids are kept as int16


@dataclass(frozen=True)
class Experts:
    """The shape of a mixture of experts: one row a token is (layers, top_k) ids below `count`."""

    layers: int
    top_k: int
    count: int


class WeightsFault(ValueError):
    """Weights that an engine must not be told to load: which, and why."""


class ModelFacts(NamedTuple):
    """Each is None where the folder does not tell; `experts` as well where the model has none."""

    vocab_size: int | None = None
    experts: Experts | None = None


def _whole(config: dict[str, Any], *names: str) -> int | None:
    """The first of these settings that is a number above 0."""
    found = (config.get(name) for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def model_facts(folder: Path | str) -> ModelFacts:
    """Of a Hugging Face folder; nothing is known where its config.json is not there, or is none."""
    try:
        config = json.loads((Path(folder) / "config.json").read_bytes())
    except (OSError, ValueError):
        return ModelFacts()
    if not isinstance(config, dict):
        return ModelFacts()
    text = config.get("text_config")  # of a model that sees as well
    config = text if isinstance(text, dict) else config
    layers, top_k = _whole(config, "num_hidden_layers"), _whole(config, "num_experts_per_tok")
    count = _whole(config, "num_experts", "n_routed_experts", "num_local_experts")
    experts = None
    if layers and top_k and count and top_k <= count <= EXPERTS_MAX:
        experts = Experts(layers, top_k, count)
    return ModelFacts(_whole(config, "vocab_size"), experts)


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of all tensors, out of the files' headers.  Raises WeightsFault for a file that is not whole."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "numpy") as tensors:
                names = tensors.keys()
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as error:
            raise WeightsFault(f"{file} does not load: {error}") from error
    return shapes


def check_weights(folder: Path, served: Path) -> None:
    """Weights in `folder` are whole, and of the shape that is served; nothing is known of folders elsewhere.

    Raises WeightsFault.  SGLang 0.5.23 dies of others: what it calls rolling back is to load them again.
    """
    if not folder.is_dir() or not (new := _shapes(folder)):
        return  # the engine says so itself
    for name, shape in (_shapes(served) if served.is_dir() else {}).items():
        if new.get(name) != shape:
            raise WeightsFault(f"{folder}: {name} has shape {new.get(name)}, {shape} is served")
