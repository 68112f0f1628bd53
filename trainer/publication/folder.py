"""What lies in a folder of weights, read tensor by tensor: a model need not fit in memory once more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer import weights
from trainer.publication.engine import PublishError
from trainer.publication.readback import part_of_fused, served_name


class Folder(Mapping[str, Tensor]):
    """The tensors of a Hugging Face folder by name, on the CPU, each read when it is asked for.

    Raises PublishError where there is no folder, no file or one that is torn.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        files = sorted(path.glob("*.safetensors"))
        index = path / "model.safetensors.index.json"
        if index.is_file():
            listed = json.loads(index.read_text())["weight_map"].values()
            files = [path / name for name in sorted(set(listed))]
        if not files:
            raise PublishError(f"{path} holds no *.safetensors file; no engine was told of it")
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            try:
                with safe_open(file, "pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118  # not a mapping
                        self._files[name] = file
                        self.shapes[name] = tuple(tensors.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise PublishError(f"{file} does not load: {error}; no engine was told of it") from error

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._files[name], "pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def digest(self) -> str:
        """`trainer.weights.digest` of what lies here."""
        return weights.digest(self)

    def check(self, digest: str) -> None:
        """Raise PublishError unless these are the weights of this digest.

        SGLang is told of no folder that was not looked at: one that breaks off while it loads ends it
        (0.5.23 rolls back from the folder that broke).
        """
        found = self.digest()
        if found != digest:
            raise PublishError(
                f"{self.path} holds weights {found[:12]}, the trainer's are {digest[:12]}; remove the "
                "folder, so that it is written again; no engine was told of it"
            )

    def check_like(self, other: Folder) -> None:
        """Raise PublishError unless names and shapes are those of `other`, which an engine serves."""
        differing = sorted(self.shapes.items() ^ other.shapes.items())
        if differing:
            name = differing[0][0]
            raise PublishError(
                f"{self.path}: {name} has shape {self.shapes.get(name)}, in {other.path} it is "
                f"{other.shapes.get(name)}; engines take other values, not another model; none was told"
            )

    def fused(self) -> dict[str, list[str]]:
        """Which tensors an engine keeps as one, in its order, by the name it has there."""
        found: dict[str, list[str]] = {}
        for name in sorted(self, key=part_of_fused):
            found.setdefault(served_name(name), []).append(name)
        return found

    def buckets(self, size_max: int, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
        """All tensors as `dtype`, some `size_max` bytes at a time.

        What an engine keeps as one comes in one bucket (but for experts, which may be many): a bucket that
        got lost leaves a tensor there that did not change at all, which `readback` sees.
        """
        bucket: dict[str, Tensor] = {}
        size = 0
        for names in self.fused().values():
            for one in [[n] for n in names] if ".experts." in names[0] else [names]:
                tensors = {n: self[n].to(dtype).contiguous() for n in one}
                added = sum(t.nbytes for t in tensors.values())
                if bucket and size + added > size_max:
                    yield bucket
                    bucket, size = {}, 0
                bucket |= tensors
                size += added
        if bucket:
            yield bucket

    def sums(self, dtype: torch.dtype) -> dict[str, str]:
        """sha256 of what an engine keeps as one tensor, as `dtype`, by the name it has there."""
        found = {}
        for served, names in self.fused().items():
            h = hashlib.sha256()
            for name in names:
                h.update(self[name].to(dtype).contiguous().reshape(-1).view(torch.uint8).numpy().data)
            found[served] = h.hexdigest()
        return found
